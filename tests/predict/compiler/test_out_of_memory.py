"""What the TPU compiler says of a program that does not fit."""

import pytest

from meshdsl.predict.compiler.out_of_memory import parse_oom

EARLY = (
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total "
    "memory required for HLO temporaries (376.30G) exceeds "
    "available HBM (15.75G). HLO module: jit__one_step.\n"
    "See https://openxla.org/xla/errors/error_1000 for more details."
)
OLDER = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
    "temporaries (48.15G) exceeds available HBM (15.75G)."
)
FULL = """RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 28.64M of 24.00M hbm. Exceeded hbm capacity by 4.64M.

Total hbm usage >= 286.64M:
    reserved        258.00M
    program          10.62M
    arguments        18.02M

Output size 18.02M; shares 18.02M with arguments.

Program hbm requirement 10.62M:
    global            1.00M
    HLO temp          2.09M (97.8% utilization: Unpadded (65.5K) Padded (67.0K), 96.9% fragmentation (2.03M))

  Largest program allocations in hbm:

  1. Size: 6.01M
     XLA label: overlays
     Allocation type: overlays
     ==========================

  2. Size: 1.51M
     Operator: op_name="jit(_one_step)/jit(_spmd)/shard_map/gradient/md.loss_and_gradients.92/psum_invariant"
     Shape: f32[395264]{0}
     Unpadded size: 1.51M
     Tag: scoped memory for all-reduce
     XLA label: all-reduce = all-reduce(scatter_custom_fusion, get-tuple-element.698, ...(+9)), channel_id=1, to_apply=region_25.26
     Allocation type: scoped
     ==========================

  3. Size: 512B
     Shape: (f32[2,512,256]{2,1,0:T(8,128)}, f32[2,512,256]{2,1,0:T(8,128)S(1)}, u32[]{:S(2)})
     Unpadded size: 512B
     XLA label: copy-start.16 = copy-start(get-tuple-element.1817)
     Allocation type: HLO temp
     ==========================
"""


@pytest.mark.parametrize(("message", "needed"), [(EARLY, 376.30), (OLDER, 48.15)])
def test_a_compiler_that_gives_up_early_says_only_how_much_it_needs(message, needed):
    found = parse_oom(message)
    assert found.arguments is None and found.largest == ()
    assert found.needed == round(needed * 2**30) and found.available == round(15.75 * 2**30)


def test_the_full_message_lists_the_largest_allocations_with_their_ops():
    found = parse_oom(FULL)
    assert (found.needed, found.available, found.arguments) == tuple(
        round(m * 2**20) for m in (28.64, 24, 18.02)
    )
    overlays, reduced, copied = found.largest
    assert (overlays.what, overlays.tag, overlays.bytes) == ("overlays", "", round(6.01 * 2**20))
    assert (reduced.tag, reduced.shape, reduced.label) == (
        "md.loss_and_gradients.92",
        "f32[395264]{0}",
        "all-reduce",
    )
    assert (copied.bytes, copied.label, copied.what) == (512, "copy-start.16", "HLO temp")


def test_another_error_is_no_verdict():
    assert parse_oom("INVALID_ARGUMENT: No such compile option: 'x'") is None
