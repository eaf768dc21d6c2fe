"""Copies of the state in the memory of hosts: kept by launchers, found, and read again."""

import json
from multiprocessing import AuthenticationError

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from meshdsl.errors import MeshDSLError
from meshdsl.train.checkpoints import copies as copies_module
from meshdsl.train.checkpoints.copies import Copies, copies_of
from meshdsl.train.checkpoints.folders import saved_steps
from meshdsl.train.checkpoints.keeper import KEEPER, Keeper, Label, Shared, reach, serve
from meshdsl.train.checkpoints.shares import assembled, cells_of, grid_of
from meshdsl.train.checkpoints.tree_leaves import named_arrays
from tests.train.checkpoints.states import FSDP, TENSOR, assert_equal, make_state, opened


class Host:
    """A launcher: its keeper, and the address of that."""

    def __init__(self):
        self.keeper = Keeper()
        port, secret = serve(self.keeper)
        self.address = f"localhost:{port}/{secret}"


@pytest.fixture
def host():
    return Host()


def started(tmp_path, host, course="1-a", report=print, every=10):
    """The checkpoints of a run that starts in a round."""
    (tmp_path / "hosts").mkdir(exist_ok=True)
    shared = Shared(course, [host.address], [0])
    record = tmp_path / "hosts" / "copies.json"
    return opened(tmp_path, report, copies=Copies(shared, record, every, report))


@pytest.mark.parametrize("every", [2, 3, 20])
def test_two_copies_are_begun_in_the_steps_that_may_be_trained_again(tmp_path, host, every):
    """One is whole when the next is begun, so the one that counts is as old as two of them."""
    copies = started(tmp_path, host, every=every)
    due = [step for step in range(1, 100) if copies.copy_due(step)]
    copies.close()
    assert all(two - one <= every for one, two in zip(due, due[2:], strict=False))


def test_where_one_step_may_be_trained_again_steps_wait_until_a_copy_is_whole(tmp_path, host):
    copies = started(tmp_path, host, every=1)
    assert copies.check(make_state(FSDP)) is None
    for step in (1, 2):
        assert copies.copy_due(step)
        copies.copy(step, make_state(FSDP, seed=step), {"next_index": step})
        assert host.keeper.newest == step
    copies.close()


def test_a_run_goes_on_from_a_copy_under_another_layout_and_reads_no_checkpoint(tmp_path, host):
    first = started(tmp_path, host)
    assert first.check(make_state(FSDP)) is None
    first.save(2, make_state(FSDP, seed=2), {"next_index": 2})
    assert [step for step in range(1, 12) if first.copy_due(step)] == [5, 10]
    for step in (5, 10):
        first.copy(step, make_state(FSDP, seed=step), {"next_index": step})
    first.close()
    assert host.keeper.newest == 10
    second = started(tmp_path, host, "2-a")
    assert second.check(make_state(TENSOR)) == 10 and second.latest == 10
    state, step, data = second.restore(make_state(TENSOR))
    assert (step, data) == (10, {"next_index": 10})
    assert_equal(state, make_state(FSDP, seed=10))
    second.copy(15, state)  # the one that the run came from stays until this one is whole
    second.close()
    assert sorted(label.step for label, *_ in host.keeper.kept()) == [10, 15]


def test_a_copy_that_is_damaged_or_not_whole_is_passed_over(tmp_path, host):
    said = []
    first = started(tmp_path, host)
    first.check(make_state(FSDP))
    first.save(2, make_state(FSDP, seed=2))
    first.copy(5, make_state(FSDP, seed=5))
    first.close()
    share = host.keeper._states[Label("1-a.1", 5)][0]
    block = share.blocks["params.up", 3]
    share.blocks["params.up", 3] = bytes(len(block))
    second = started(tmp_path, host, "2-a", said.append)
    assert second.restore(make_state(FSDP)).step == 2
    assert said == [
        "the copy of step 5 in memory is damaged: `params.up` is not what was saved; using step 2"
    ]
    second.close()
    share.blocks["params.up", 3] = block[1:]
    first._copies.go_on(None)
    share.complete = False
    assert first._copies.newest() is None


def test_copies_of_steps_that_were_done_otherwise_do_not_count(tmp_path, host):
    """A host that was away when a run went on from disk comes back with its copies."""
    first = started(tmp_path, host)
    first.check(make_state(FSDP))
    first.copy(5, make_state(FSDP, seed=5))
    first.close()
    away = Host()
    second = started(tmp_path, away, "2-b")
    assert second.check(make_state(FSDP)) is None
    second.close()
    third = started(tmp_path, host, "3-a")
    assert third.check(make_state(FSDP)) is None
    third.close()


def test_a_run_that_goes_back_no_longer_counts_what_it_kept(tmp_path, host):
    run = started(tmp_path, host)
    run.check(make_state(FSDP))
    run.copy(5, make_state(FSDP, seed=5))
    assert run.restore(make_state(FSDP)).step == 5
    run.copy(10, make_state(FSDP, seed=10))
    assert run.restore(make_state(FSDP)).step == 10
    run._copies.go_on(None)
    assert run.latest is None
    run.close()


def test_shares_of_several_processes_are_found_on_the_hosts_that_are_left(tmp_path):
    """Four hosts, each with the share of its process and that of the one before."""
    state = make_state(FSDP, seed=7)
    hosts = [Host() for _ in range(4)]
    one = Host()
    run = started(tmp_path, one)
    run.check(state)
    run.copy(5, state, {"next_index": 5})
    run.close()
    label = Label("1-a.1", 5)
    about = json.loads(one.keeper.about(label))
    # What eight devices of one process have is what two devices each of four processes have.
    for number, (counts, owners) in enumerate(about["grids"]):
        about["grids"][number] = [counts, [cell * 4 // len(owners) for cell in range(len(owners))]]
    for process in range(4):
        for host in (hosts[process], hosts[(process + 1) % 4]):
            host.keeper.begin(label, process, 4, None)
            for (name, cell), data in one.keeper._states[label][0].blocks.items():
                if about["grids"][about["grid_of"][name]][1][cell] == process:
                    host.keeper.add(label, process, name, cell, data)
            host.keeper.complete(label, process, json.dumps(about) if process == 0 else "")
    record = tmp_path / "hosts" / "copies.json"

    def left(*numbers):
        shared = Shared("1-a", [hosts[i].address for i in numbers], list(range(len(numbers))))
        return opened(tmp_path, copies=Copies(shared, record, 5, print))

    for numbers in ([1, 2, 3], [0, 2], [3, 1]):
        assert_equal(left(*numbers).restore(make_state(TENSOR)).state, state)
        record.write_text(json.dumps({"course": "1-a.1", "from": None}))
    for numbers in ([0, 1], [2, 3]):  # the shares of a process are on neither
        assert left(*numbers).check(state) is None
        record.write_text(json.dumps({"course": "1-a.1", "from": None}))


def test_a_host_that_is_not_reached_is_told_of_and_the_run_goes_on(tmp_path, host):
    said = []
    gone = "localhost:1/x"
    (tmp_path / "hosts").mkdir()
    copies = Copies(
        Shared("1-a", [host.address, gone], [0, 1]),
        tmp_path / "hosts" / "copies.json",
        5,
        said.append,
    )
    run = opened(tmp_path, copies=copies)
    run.check(make_state(FSDP))
    run.copy(5, make_state(FSDP, seed=5))
    run.close()
    assert len(said) == 1 and said[0].startswith("the copy of step 5 is not whole: ")
    assert saved_steps(tmp_path / "checkpoints") == []


def test_nobody_is_answered_without_the_secret(host):
    where = host.address.rpartition("/")[0]
    with pytest.raises(AuthenticationError):
        reach(f"{where}/{'0' * 32}")
    assert reach(host.address).kept() == []


def test_copies_are_made_where_a_launcher_keeps_them(tmp_path, host, monkeypatch):
    record = tmp_path / "copies.json"
    assert copies_of(record, 5, print) is None
    monkeypatch.setenv(KEEPER, host.address)
    assert copies_of(record, 0, print) is None and copies_of(record, 5, print) is None
    host.keeper.shared = Shared("1-a", [host.address], [0])
    found = copies_of(record, 5, print)
    assert found and found.processes_here == 1
    monkeypatch.setattr(copies_module, "_free_memory", lambda: 1000)
    with pytest.raises(MeshDSLError, match=r"elastic.memory_every: copies take up to .* KiB of"):
        found.check_room(named_arrays(make_state(FSDP)))
    host.keeper.begin(Label("1-a.1", 5), 0, 1, None)
    host.keeper.complete(Label("1-a.1", 5), 0, "")
    found.check_room(named_arrays(make_state(FSDP)))  # in place of what is kept already


@pytest.mark.parametrize("text", ["", "{", "[]", '{"course": "1-a.1"}', '{"from": [1]}'])
def test_a_record_that_is_damaged_allows_no_copy(text, tmp_path, host):
    run = started(tmp_path, host)
    run.check(make_state(FSDP))
    run.copy(5, make_state(FSDP))
    run.close()
    (tmp_path / "hosts" / "copies.json").write_text(text)
    assert run._copies.newest() is None


@settings(deadline=None)
@given(st.data())
def test_what_is_put_together_from_cells_is_what_it_was(data):
    """Any part of any array, whatever grid it was divided by; each cell once in all shares."""
    mesh = jax.make_mesh((2, 2, 2), ("a", "b", "c"))
    ndim = data.draw(st.integers(0, 3))
    shape = tuple(8 * data.draw(st.integers(1, 2)) for _ in range(ndim))
    split = lambda: NamedSharding(mesh, PartitionSpec(*_spec(data, ndim)))
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    there, here = split(), split()
    grid, devices = grid_of(shape, there)
    placed = jax.device_put(jnp.asarray(array), there)
    parts = {shard.device: np.asarray(shard.data) for shard in placed.addressable_shards}
    blocks = [parts[device].tobytes() for device in devices]
    assert sum(map(len, blocks)) == array.nbytes and len(blocks) == len(grid.owners)
    for index in here.devices_indices_map(shape).values():
        found = assembled(shape, "float32", grid.counts, index, blocks.__getitem__)
        np.testing.assert_array_equal(found, array[index])
        used = set(cells_of(shape, grid.counts, index))
        assert used <= set(range(len(blocks)))


def _spec(data, ndim):
    axes = data.draw(st.permutations(["a", "b", "c"]))
    found = [[] for _ in range(ndim)]
    for axis in axes[: data.draw(st.integers(0, 3))] if ndim else ():
        found[data.draw(st.integers(0, ndim - 1))].append(axis)
    return [tuple(each) or None for each in found]


def test_a_copy_of_empty_arrays_and_numbers(tmp_path, host):
    state = {"empty": jnp.zeros((0, 4)), "number": 3, "x": jnp.arange(4.0)}
    run = started(tmp_path, host)
    run.check(state)
    run.copy(5, state)
    found = run.restore(state)
    run.close()
    assert found.state["number"] == 3 and found.state["empty"].shape == (0, 4)
    np.testing.assert_array_equal(found.state["x"], state["x"])
