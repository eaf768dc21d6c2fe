"""What compilers do to collectives, and what is a surprise."""

from dataclasses import dataclass
from types import SimpleNamespace

from meshdsl.machine.timeline import Ran
from meshdsl.predict.compiler.match import match
from meshdsl.program.collective import Collective

FORWARD, BACKWARD = "jvp(md.f.3)/x", "transpose(jvp(md.f.3))/x"
GATHER = Collective("all_gather", ("data",), 4, 1024, "bfloat16", FORWARD)
SCATTER = Collective("psum_scatter", ("data",), 4, 1024, "bfloat16", BACKWARD)
SUM = Collective("psum", ("model",), 1, 64, "float32", "gradient/md.f.5/psum")


@dataclass(frozen=True)
class Op:
    tag: str
    source: tuple = ("model.py", 12)
    lines: tuple = (("model.py", 12),)

    def __str__(self):
        return f"op {self.tag}"


def program(*collectives):
    """A record of these collectives."""
    return SimpleNamespace(
        collectives=list(collectives),
        op_of=lambda c: (
            Op("md.f.3") if "md.f.3" in c.scope else Op("md.f.5") if "md.f.5" in c.scope else None
        ),
    )


def changed(c, **values):
    return Collective(**{**vars(c), **values})


def only(record, compiled):
    rows, absent = match(program(*record), compiled)
    assert len(rows) == 1
    return rows[0], absent


def test_what_runs_as_recorded_needs_no_words():
    row, absent = only([GATHER], [GATHER])
    assert (row.how, row.surprise, row.count, row.tag, row.source, absent) == (
        "",
        False,
        4,
        "md.f.3",
        "model.py:12",
        (),
    )


def test_a_group_in_which_devices_are_exchanged_is_a_surprise():
    row, absent = only([GATHER], [changed(GATHER, whole=False)])
    assert row.surprise and row.axes == ("data",)
    assert [a.operation for a in absent] == ["all_gather"]


def test_what_no_record_explains_is_a_surprise_and_stands_first():
    resharding = Collective("all_to_all", ("data",), 2, 10_000, "bfloat16", BACKWARD)
    rows, absent = match(program(GATHER), [GATHER, resharding])
    assert (
        [row.surprise for row in rows] == [True, False]
        and rows[0].operation == "all_to_all"
        and rows[0].op == "op md.f.3"
    )
    assert absent == ()


def test_an_exchange_may_stand_for_a_scatter_of_the_same_bytes():
    row, absent = only([SCATTER], [changed(SCATTER, operation="all_to_all")])
    assert not row.surprise and absent == ()
    assert row.how.startswith("an all_to_all and a local sum instead of psum_scatter")


def test_more_executions_than_recorded_are_a_surprise():
    rows, _ = match(program(GATHER), [changed(GATHER, count=6)])
    assert {(row.surprise, row.count) for row in rows} == {(True, 2), (False, 4)}


def test_fewer_executions_are_named():
    row, (missing,) = only([GATHER], [changed(GATHER, count=1)])
    assert row.count == 1 and (missing.count, missing.how) == (
        3,
        "the same as one that runs: merged with it, or moved out of a loop",
    )
    assert match(program(GATHER), [])[1][0].how == "left out by the compiler"


def test_known_changes_are_told_in_words():
    assert (
        only([GATHER], [changed(GATHER, dtype="float32", bytes=2048)])[0].how
        == "in float32, not bfloat16: 2 times the bytes"
    )
    assert (
        only([GATHER], [changed(GATHER, bytes=1536)])[0].how
        == "1,536 bytes instead of 1,024: padded"
    )
    assert (
        only([SCATTER], [changed(SCATTER, operation="psum")])[0].how
        == "an all-reduce of the whole instead of psum_scatter"
    )
    assert only([SUM], [changed(SUM, scope="")])[0].how == "without its scope"
    assert (
        only([SUM, GATHER], [GATHER, changed(SUM, scope=FORWARD)][1:])[0].how
        == "combined with others into one"
    )


def test_gathers_that_a_compiler_sums_are_told_from_scatters_of_about_their_size():
    """Gathers that one instruction sums have the scope of the first: bytes tell whose they are."""
    small = changed(GATHER, bytes=512)
    other = changed(GATHER, bytes=1400, scope="jvp(md.f.5)/x")
    twice = changed(SCATTER, bytes=1024, dtype="float32")  # the gradient of `small`: in float32
    record = [small, other, twice]
    summed = [changed(c, operation="psum") for c in record]
    summed[1] = changed(summed[1], scope=FORWARD)  # combined with the first
    summed[2] = changed(summed[2], scope="")  # made by the compiler
    parts = tuple(summed[:2])
    ran = [
        Ran(summed[1], parts, True, 1.0, 0.0, "s"),
        Ran(summed[2], (summed[2],), True, 1.0, 0.0, "t"),
    ]
    rows, absent = match(program(*record), ran)
    assert [(row.bytes, row.phase, row.tag, row.how) for row in rows] == [
        (512, "forward", "md.f.3", "an all-reduce of the whole instead of all_gather"),
        (1400, "forward", "md.f.5", "an all-reduce of the whole instead of all_gather"),
        (1024, "backward", "md.f.3", "an all-reduce of the whole instead of psum_scatter"),
    ]
    assert absent == ()


def test_a_gather_of_a_few_whole_numbers_may_be_the_sum_of_a_tile():
    few = changed(GATHER, dtype="uint16", bytes=8)
    sum_ = changed(few, operation="psum", dtype="uint32", bytes=512, scope="")
    row, absent = only([few], [sum_])
    assert row.how == "an all-reduce of 512 bytes instead of all_gather of 8" and not absent
    for other in (changed(sum_, bytes=8192), changed(sum_, dtype="float32")):
        rows, _ = match(program(few), [other])
        assert rows[0].surprise


def test_what_is_combined_is_of_one_pass():
    again = changed(GATHER, scope="transpose(jvp(x))/rematted_computation/md.f.3/x")
    combined = changed(again, operation="psum", scope=again.scope.replace("md.f.3", "md.f.5"))
    rows, (missing,) = match(program(GATHER, again), [combined])
    assert [row.phase for row in rows] == ["recompute"] and missing.phase == "forward"


def test_sums_that_became_one_array_are_told_together():
    other = changed(SUM, bytes=32, scope="gradient/md.f.3/psum")
    row, absent = only([SUM, other], [changed(SUM, bytes=96, scope="")])
    assert row.how == "2 of them in one array" and not absent


def test_an_all_reduce_much_larger_than_what_was_recorded_is_a_surprise():
    assert only([SCATTER], [changed(SCATTER, operation="psum", bytes=4096)])[0].surprise


def test_permutes_are_steps_of_a_ring_where_a_gather_is_lacking():
    step = Collective("ppermute", ("data",), 12, 256, "bfloat16", FORWARD)
    row, absent = only([GATHER], [step])
    assert row.how == "a step of a ring beside its product, instead of all_gather" and absent == ()
    rows, _ = match(program(GATHER), [GATHER, step])
    assert rows[0].surprise and rows[0].operation == "ppermute"


def test_small_permutes_without_a_scope_repair_seams():
    step = Collective("ppermute", ("data",), 1, 128, "bfloat16", "")
    rows, _ = match(program(SCATTER), [SCATTER, step])
    assert [row.how for row in rows] == ["repairs the seams of a padded psum_scatter", ""]


def test_what_goes_from_slice_to_slice_is_left_to_the_hosts():
    outer = changed(SUM, axes=("replica", "data"))
    inside = changed(SUM, axes=("data",), bytes=512, scope="")
    rows, absent = match(program(outer), [inside], between=("replica",))
    assert [row.how for row in rows] == ["the part inside a slice of psum(replica, data)"]
    assert [row.how for row in absent] == ["between slices: the hosts exchange it"]
    assert match(program(outer), [inside])[0][0].surprise
