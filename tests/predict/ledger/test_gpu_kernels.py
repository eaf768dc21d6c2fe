"""The instructions that the kernels of a GPU ran for.

`gpu_trace.json` has two turns of a loop of a real step, as a trace has them. The other programs are
made up, of what such traces have been seen to hold.
"""

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from meshdsl.predict.compiler.hlo_text import Module
from meshdsl.predict.ledger.gpu_kernels import Kernel, executions

REAL = json.loads((Path(__file__).parent / "gpu_trace.json").read_text())

LOOP = """HloModule jit_step, is_scheduled=true

%less (p: s32[]) -> pred[] {
  ROOT %wrapped_compare = pred[] fusion(), kind=kLoop
}

%body (p: s32[]) -> s32[] {
  %input_fusion.1 = f32[8]{0} fusion(), kind=kLoop
  %custom-call.1 = f32[8]{0} custom-call(), custom_call_target="__cublas$lt$matmul"
  %custom-call.2 = f32[8]{0} custom-call(), custom_call_target="__cublas$lt$matmul"
  %attention = f32[8]{0} custom-call(), custom_call_target="__cudnn$fmhaSoftmaxBackward"
  ROOT %input_fusion.2 = f32[8]{0} fusion(), kind=kLoop
}

%sorted (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %sort.7.1 = f32[8]{0} sort(%a), dimensions={0}
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %copy.3 = f32[8]{0} copy(%x)
  %fusion.4 = f32[8]{0} fusion(%copy.3), kind=kCustom, calls=%sorted
  %loop = s32[] while(), condition=%less, body=%body
  %call.5 = f32[8]{0} custom-call(), custom_call_target="__gpu$xla.gpu.triton", name="my_kernel"
  ROOT %input_fusion.6 = f32[4]{0} fusion(), kind=kLoop
}
"""

SENT = """HloModule jit_step, is_scheduled=true

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %gather.1 = (f32[8], f32[16]) all-gather-start(%x), dimensions={0}
  %fusion.1 = f32[8]{0} fusion(%x), kind=kLoop
  %scatter.1 = ((f32[8]), f32[4]) reduce-scatter-start(%fusion.1), dimensions={0}
  %whole.1 = f32[16]{0} all-gather-done(%gather.1)
  %fusion.3 = f32[4]{0} fusion(%x), kind=kLoop
  %fusion.2 = f32[16]{0} fusion(%whole.1), kind=kLoop
  %gather.2 = (f32[8], f32[16]) all-gather-start(%fusion.2), dimensions={0}
  ROOT %whole.2 = f32[16]{0} all-gather-done(%gather.2)
}
"""


def ran(text, *names, stream="Stream #1", every=10, said=None):
    """What ran as which instruction, of kernels that run for 8 ns one after the other."""
    kernels = [
        Kernel(every * n, every * n + 8, stream, name, (said or {}).get(n, "command_buffer_1"))
        for n, name in enumerate(names)
    ]
    return [(one.call, one.instruction) for one in executions(kernels, Module(text))]


def test_a_real_step_runs_its_schedule():
    module = Module("\n".join(REAL["hlo"]))
    kernels = [
        Kernel(start, start + lasts, REAL["stream"], name, f"command_buffer_{graph}")
        for name, graph, _, start, lasts in REAL["kernels"]
    ]
    found = executions(kernels, module)
    turns = {i.name: 2 for i in module.computations["body"]}
    once = {i.name: 1 for i in module.computations["main"] if i.opcode != "while"}
    assert Counter(one.instruction for one in found) == turns | once, "each as often as its loop"
    # A node of a graph is of one instruction, and XLA numbers those of its own kernels in order.
    nodes = defaultdict(set)
    for name, graph, node, start, _ in REAL["kernels"]:
        holder = max(one for one in found if one.start <= start)
        nodes[graph, node].add(holder.instruction)
        if name == "memcpy128":
            assert holder.instruction == "fusion-start"
    assert all(len(each) == 1 for each in nodes.values())
    order = list(module.instructions)
    own = [nodes[key].pop() for key in sorted(nodes) if key[0] == 23 and key[1] < 27]
    assert len(own) == 21 and own == sorted(set(own), key=order.index)
    # The memset of a product belongs to it.
    products = [one for one in found if one.instruction == "custom-call.15"]
    assert [one.end - one.start for one in products] == [78463, 74944]


TURN = (
    "wrapped_compare",
    "MemcpyD2H",
    "input_fusion_1",
    *("Memset 0", "nvjet_a", "Memset 0", "nvjet_a", "Memset 0"),
    *("void cudnn::dot", "cudnn_sdpa_bprop", "void cudnn::convert", "input_fusion_1"),
)
IN_TURN = ["input_fusion.1", "custom-call.1", "custom-call.2", "attention", "input_fusion.2"]


@pytest.mark.parametrize("turns", [(2, 2), (1, 3), (0, 1)])
def test_loops_turn_as_often_as_their_kernels_run(turns):
    names, said, expected = [], {}, []
    for call, count in enumerate(turns):
        names += ["memcpy32_post", "memcpy128", "sort_7_1"]
        instructions = ["copy.3", "fusion.4"]
        for _ in range(count):
            said[len(names) + 1] = "loop"
            names += TURN
            instructions += ["wrapped_compare", "loop", *IN_TURN]
        said[len(names) + 1] = "loop"
        names += ["wrapped_compare", "MemcpyD2H", "my_kernel", "input_fusion_6"]
        instructions += ["wrapped_compare", "loop", "call.5", "input_fusion.6"]
        expected += [(call, name) for name in instructions]
    assert ran(LOOP, *names, said=said) == expected


def test_products_may_have_several_kernels_or_no_memset():
    def product(*kernels):
        names = ["wrapped_compare", "input_fusion_1", *kernels, "cudnn_sdpa", "input_fusion_1"]
        expected = ["wrapped_compare", *IN_TURN]
        assert [name for _, name in ran(LOOP, *names)] == expected, kernels

    product("nvjet_a", "Memset 0", "nvjet_b")
    product("Memset 0", "nvjet_a", "sm90_xmma_gemm")
    product("nvjet_a", "nvjet_b", "cublasLt::splitKreduce")


def test_a_kernel_that_nothing_runs_is_left_out():
    names = ["wrapped_compare", "input_fusion_1", "nvjet_a", "nvjet_b", "cudnn", "input_fusion_1"]
    found = ran(LOOP, *names[:2], "redzone_checker", *names[2:])
    assert found == ran(LOOP, *names) == [(0, name) for name in ("wrapped_compare", *IN_TURN)]
    assert ran(LOOP) == []


def test_collectives_run_on_streams_of_their_own():
    def sent(name, start):
        name = f"ncclDevKernel_{name}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        return Kernel(start, start + 15, "Stream #2", name, "command_buffer_1")

    kernels = []
    for start in (0, 100):
        kernels += [
            sent("AllGather", start),  # before the call's first kernel on the main stream
            *(
                Kernel(start + at, start + at + 8, "Stream #1", name, "command_buffer_1")
                for at, name in ((10, "fusion_1"), (20, "fusion_3"), (40, "fusion_2"))
            ),
            sent("ReduceScatter_Sum_f32", start + 22),
            sent("AllGather", start + 60),  # after its last one
        ]
    found = executions(kernels, Module(SENT))
    expected = ["gather.1", "fusion.1", "fusion.3", "scatter.1", "fusion.2", "gather.2"]
    assert [(one.call, one.instruction) for one in sorted(found)] == [
        (call, name) for call in (0, 1) for name in expected
    ]
