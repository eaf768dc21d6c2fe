"""`meshdsl launch --elastic`: which hosts take part in a round, and when one ends."""

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshdsl.commands import elastic
from meshdsl.commands.members import Member, Members, answers
from meshdsl.commands.processes import Outcome
from meshdsl.commands.rounds import Hosts
from meshdsl.errors import MeshDSLError
from meshdsl.train.checkpoints.keeper import Keeper, serve
from meshdsl.train.config import Config
from meshdsl.train.elastic import fitted
from meshdsl.train.folder import RunFolder
from meshdsl.train.settings import override
from meshdsl_cli import main


class World:
    """Hosts with a clock of their own, whose network and processes are imitated."""

    def __init__(self, folder, least=2, most=4, fits=lambda devices: True, seed=0):
        self.folder, self.least, self.most, self.fits = folder, least, most, fits
        self.time, self.hosts, self.dead = 0.0, {}, set()
        self.cut: set[str] = set()  # of these no other host is reached
        self.said, self.ran = [], {}  # the round of the processes of each host
        self.draw = random.Random(seed)

    def add(self):
        name = f"h{len(self.hosts)}"
        answers = lambda address: self.reached(name, address.partition(":")[0])
        me = Member(name, f"{name}:1", "", 1, 2)
        how = self.folder, me, self.least, self.most, self.fits, self.said.append
        self.hosts[name] = Hosts(*how, answers, lambda: self.time)
        return name

    def reached(self, one, other):
        return other not in self.dead and (one == other or not {one, other} & self.cut)

    @property
    def live(self):
        return {name: each for name, each in self.hosts.items() if name not in self.dead}

    def run(self, seconds):
        """Let time go by; processes start, and end by a signal, in the time of a tick."""
        end = self.time + seconds
        while self.time < end:
            self.time += 0.25
            for name, host in self.draw.sample(sorted(self.live.items()), len(self.live)):
                host.tick()
                if name in self.ran and host.signal:
                    del self.ran[name]
                    host.ended()
                elif name not in self.ran and (now := host.round):
                    self.ran[name] = now.key
            assert len(set(self.ran.values())) <= 1, "two rounds at once"

    def kill(self, name):
        """A host is gone, with its processes."""
        self.dead.add(name)
        self.ran.pop(name, None)

    def dies(self, name):
        """The processes of a host die, and it stays."""
        if self.ran.pop(name, None):
            self.hosts[name].ended()


@pytest.fixture
def world(tmp_path):
    found = World(tmp_path)
    for _ in range(4):
        found.add()
    found.run(8)
    assert sorted(found.ran) == ["h0", "h1", "h2", "h3"]
    return found


def test_a_round_goes_on_with_those_that_are_left_and_takes_those_that_come(world):
    first = set(world.ran.values())
    world.kill("h2")
    began = world.time
    while len(world.ran) != 3 or set(world.ran.values()) == first:
        world.run(0.25)
    assert world.time - began < 5
    assert any("h2 is of this round no more" in line for line in world.said)
    world.kill("h0")  # the one that others follow
    world.run(8)
    assert sorted(world.ran) == ["h1", "h3"]
    world.kill("h1")
    world.run(30)
    assert world.ran == {} and "1 host here, at least 2 needed; waiting for others" in world.said
    world.add()
    world.add()
    world.run(8)
    assert sorted(world.ran) == ["h3", "h4", "h5"]
    for _ in range(2):
        world.add()
    world.run(30)
    assert len(world.ran) == 4, "no more than four"


def test_a_process_that_dies_starts_a_round_of_the_same_hosts(world):
    first = set(world.ran.values())
    world.dies("h1")
    world.run(10)
    assert len(world.ran) == 4 and set(world.ran.values()) != first


@pytest.mark.parametrize("name", ["h0", "h1"])
def test_a_host_that_is_cut_off_is_left_out_until_the_network_is_mended(name, world):
    """Its file still changes, because the file system does not go by that network."""
    world.cut = {name}
    world.run(15)
    assert len(world.ran) == 3 and name not in world.ran
    world.cut = set()
    world.run(30)
    assert len(world.ran) == 4


def test_a_round_has_only_as_many_hosts_as_the_run_can_use(tmp_path):
    world = World(tmp_path, fits=lambda devices: devices in (2, 4, 8), least=1)
    for _ in range(3):
        world.add()
    world.run(10)
    assert sorted(world.ran) == ["h0", "h1"]
    world.add()
    world.run(30)
    assert len(world.ran) == 4
    world.kill("h1")
    world.run(10)
    assert len(world.ran) == 2


@settings(max_examples=settings.default.max_examples // 4)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_whatever_happens_one_round_runs_and_goes_on(tmp_path_factory, seed, least):
    draw = random.Random(seed)
    world = World(tmp_path_factory.mktemp("hosts"), least=least, seed=seed)
    for _ in range(3):
        world.add()
    for _ in range(12):
        world.run(draw.choice([0.25, 1, 3, 10]))
        names = sorted(world.live)
        what = draw.choice(["kill", "add", "dies", "cut", "mend"])
        if what == "add" and len(names) < 6:
            world.add()
        elif what == "mend":
            world.cut = set()
        elif names and what == "kill" and len(names) > 1:
            world.kill(draw.choice(names))
        elif names and what == "dies":
            world.dies(draw.choice(names))
        elif names and what == "cut":
            world.cut = {draw.choice(names)}
    world.cut = set()
    world.run(60)
    count = min(4, len(world.live))
    assert len(world.ran) == (count if count >= least else 0)


def test_files_of_hosts_that_are_gone_are_removed(world):
    world.kill("h2")
    world.run(8)
    assert sorted(path.stem for path in (world.folder / "members").iterdir()) == ["h0", "h1", "h3"]


def test_a_host_that_waits_when_the_run_ends_ends_too(world):
    """Though it took no part, because the run cannot use so many hosts."""
    (world.folder / "checkpoints/7").mkdir(parents=True)
    waits = world.hosts[world.add()]
    assert elastic._rounds(waits, Keeper(), RunFolder(world.folder), 7, ["train"], []) == 0


def test_rounds_without_progress_are_given_up(world, monkeypatch, capfd):
    calls, host = [], world.hosts["h0"]
    died = Outcome(75, False)

    def launch(words, environments, place, ask):
        calls.append(place)
        return died

    monkeypatch.setattr(elastic, "launch", launch)
    monkeypatch.setattr(host, "ended", lambda: None)
    assert elastic._rounds(host, Keeper(), RunFolder(world.folder), 7, ["train"], []) == 75
    assert len(calls) == 4 and calls[0].total == 4
    assert "it is given up: exit code 75, and step 0 is the newest" in capfd.readouterr().err


def test_a_keeper_answers_who_knocks_and_what_is_none_does_not():
    port, _ = serve(Keeper())
    assert answers(f"localhost:{port}")
    assert not answers("localhost:1") and not answers("nowhere.invalid:1") and not answers("x")


def test_files_that_are_damaged_are_no_hosts(tmp_path):
    members = Members(tmp_path, lambda address: True)
    members.write(Member("a", "a:1", "", 1, 1))
    (tmp_path / "b.json").write_text('{"name": ')
    (tmp_path / "c.json").write_text('{"other": 1}')
    assert list(members.there()) == ["a"]
    members.leave("a")
    members.leave("a")
    assert members.there() == {}
    members.write(replace(Member("a", "a:1", "", 1, 1), beat=3))
    assert members.there(["a", "z"])["a"].beat == 3


@pytest.mark.parametrize(
    ("flags", "words", "why"),
    [
        (["--elastic", "3:2"], ["train", "--out", "OUT"], "--elastic 3:2: expected MIN:MAX"),
        (["--elastic", "x"], ["train", "--out", "OUT"], "--elastic x: expected MIN:MAX"),
        (["--elastic", "1:2"], ["train"], "train, with --out FOLDER of its own"),
        (["--elastic", "1:2"], ["layouts"], "train, with --out FOLDER of its own"),
        (
            ["--elastic", "1:2", "--restarts", "3"],
            ["train", "--out", "OUT"],
            "--elastic: starts again by itself, so --restarts does not go with it",
        ),
        ([], ["train", "--out", "OUT"], "--processes: say how many"),
        (
            ["--elastic", "3:4"],
            ["train", "--out", "OUT", "--layout", "fsdp", "batch=16"],
            "--elastic 3:4: with 3 hosts, 3 devices: ",
        ),
        (["--elastic", "1:2"], ["train", "--out", "OUT", "bach=16"], "did you mean `batch`?"),
    ],
)
def test_mistakes_are_known_before_anything_starts(flags, words, why, tmp_path, capfd):
    words = [word.replace("OUT", str(tmp_path / "a")) for word in words]
    assert main(["launch", *flags, "--", *words]) == 2
    assert why in capfd.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            ["elastic.many=3"],
            "elastic.many: expected `devices`, `memory_every` or a number of devices",
        ),
        (
            ["elastic.devices=0"],
            "elastic.devices: expected `devices`, `memory_every` or a number of devices",
        ),
        (["elastic.2=3"], "elastic.2: expected sizes of mesh axes, or a layout"),
        (["elastic.2={ data = 0 }"], "elastic.2: sizes of mesh axes are whole numbers"),
        (["elastic.2={ model = 2 }"], "elastic.2: the layout has no axis `model`"),
        (["elastic.2={ data = 3 }"], "mesh data=3 needs 3 devices and 2 are given"),
        (["batch=9", "elastic.devices=4"], "`batch`=3 does not divide over `data`=2"),
    ],
)
def test_mistakes_of_the_table(settings, why):
    with pytest.raises(MeshDSLError, match=re.escape(why)):
        fitted(override(Config(), ["layout=fsdp", *settings]), 2)


def test_fewer_devices_run_the_batch_in_more_microbatches():
    """So that a device has no more rows at once than planned, and the layout still fits."""
    planned = ["layout=fsdp", "batch=24", "microbatches=2", "elastic.devices=6"]
    planned += ["model.d_model=48", "model.heads=4"]
    config = override(Config(), [*planned, "elastic.1=single"])
    found = {n: fitted(config, n).microbatches for n in (1, 2, 3, 6, 12)}
    assert found == {1: 12, 2: 6, 3: 4, 6: 2, 12: 2}
    assert fitted(config, 1).layout == "single" and fitted(config, 2).layout == "fsdp"
