"""`meshdsl submit`: the scripts do what they should, and the manifests are as their schemas say."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from meshdsl.errors import MeshDSLError
from meshdsl.machine import find_target
from meshdsl.submit.kubernetes import hosts_of
from meshdsl.submit.slurm import slurm_script
from meshdsl.submit.submission import Submission
from meshdsl.train.config import Config
from meshdsl.train.settings import read
from meshdsl_cli import main

ROOT = Path(__file__).parents[2]
JOBSET = json.loads((ROOT / "tests/submit/data/jobset.json").read_text())
K8S = ["--out", "/shared/runs/A_b", "--image", "img:1", "--volume", "claim:/shared", "--dry-run"]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text('steps = 7\nlayout = "fsdp"\n')
    return path


@pytest.fixture
def given(config, capsys):
    """What a command line of `meshdsl submit` prints."""

    def run(where, *words):
        code = main(["submit", where, str(config), *words])
        said = capsys.readouterr()
        return said.out if code == 0 else f"{code} {said.err}"

    return run


def executed(script, folder, programs, **environment):
    """The exit code of a script of bash, which finds these programs, each a script of its own."""
    for name, lines in programs.items():
        path = folder / name
        path.write_text(f"#!/bin/bash\n{lines}\n")
        path.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **environment}
    return subprocess.run(
        [shutil.which("bash"), "-c", script], env=environment, timeout=30
    ).returncode


# -- SLURM -----------------------------------------------------------------------------------------


def job(tmp_path, **changes):
    given = {"nodes": 2, "settings": ("seed=3", "model.name=a b"), **changes}
    return Submission(("meshdsl",), "my.toml", out=f"{tmp_path}/r u n", steps=7, **given)


PROGRAMS = {
    "srun": 'shift; "$@"',
    "scontrol": 'echo "$@" > "$LOG/requeued"',
    "meshdsl": """
        printf "%s\\n" "$@" > "$LOG/words"
        mkdir -p "$LOG/r u n/checkpoints/$SAVES"
        exit $CODE
    """,
}


@pytest.mark.parametrize(
    ("done", "code", "saves", "expected", "requeued"),
    [
        (False, 0, "", 0, True),  # told to end
        (True, 0, "", 0, False),
        (False, 3, "5", 0, True),  # died, further than before
        (False, 3, "", 3, False),
        (False, 2, "5", 2, False),  # a mistake
        (True, 3, "", 3, False),
    ],
)
def test_a_batch_script_goes_back_into_the_queue_until_the_run_is_done(
    tmp_path, done, code, saves, expected, requeued
):
    if done:
        (tmp_path / "r u n/checkpoints/7").mkdir(parents=True)
    (tmp_path / "r u n/checkpoints/4").mkdir(parents=True)
    (tmp_path / "r u n/checkpoints/40.damaged").mkdir()
    script = slurm_script(job(tmp_path), "24:00:00", ["--partition=gpu"])
    told = {"SAVES": saves, "LOG": str(tmp_path), "CODE": str(code), "SLURM_JOB_ID": "12"}
    assert executed(script, tmp_path, PROGRAMS, **told) == expected
    words = ["train", "my.toml", "seed=3", "model.name=a b", "--out", f"{tmp_path}/r u n"]
    assert (tmp_path / "words").read_text().splitlines() == [*words, "--resume", "auto"]
    assert (tmp_path / "requeued").exists() == requeued
    options = [line[8:] for line in script.splitlines() if line.startswith("#SBATCH")]
    assert options[0] == "--job-name=r-u-n" and options[-1] == "--partition=gpu"
    assert "--time=24:00:00" in options and "--signal=TERM@300" in options


def test_the_page_has_the_script_that_is_made():
    job = Submission(
        ("/home/me/.venv/bin/meshdsl",), "/home/me/my.toml", (), "/home/me/runs/a", 100000, 4, 8
    )
    script = slurm_script(job, "24:00:00", ["--partition=gpu"])
    assert f"\n```\n{script}```\n" in (ROOT / "docs/launch.md").read_text()


@pytest.mark.parametrize(
    ("folder", "name"), [("Run_A", "run-a"), ("7b", "run-7b"), ("_", "run"), ("x" * 50, "x" * 40)]
)
def test_a_job_has_a_name_that_clusters_take(tmp_path, folder, name):
    assert replace(job(tmp_path), out=f"{tmp_path}/{folder}").name == name


def test_an_array_has_a_run_for_each_value(tmp_path):
    script = slurm_script(job(tmp_path), each="optimizer.learning_rate=1e-3,2e-3")
    (tmp_path / "r u n/optimizer.learning_rate=2e-3/checkpoints/7").mkdir(parents=True)
    told = {"LOG": str(tmp_path), "CODE": "0", "SLURM_ARRAY_TASK_ID": "1"}
    assert executed(script, tmp_path, PROGRAMS, **told) == 0
    words = (tmp_path / "words").read_text().splitlines()
    assert words[4:7] == [
        "optimizer.learning_rate=2e-3",
        "--out",
        f"{tmp_path}/r u n/optimizer.learning_rate=2e-3",
    ]
    assert not (tmp_path / "requeued").exists() and "#SBATCH --array=0-1" in script


def test_an_elastic_run_is_launched_on_each_node(tmp_path):
    script = slurm_script(job(tmp_path, nodes=4, least=2))
    told = {"LOG": str(tmp_path), "CODE": "0"}
    assert executed(script, tmp_path, PROGRAMS, **told) == 0
    words = (tmp_path / "words").read_text().splitlines()
    assert words[:5] == ["launch", "--elastic", "2:4", "--", "train"]
    assert "#SBATCH --no-kill" in script and "--kill-on-bad-exit=0" in script


# -- Kubernetes ------------------------------------------------------------------------------------


def checked(text):
    """The objects of a manifest by their kinds, as the schemas say that they are."""
    found = {each["kind"]: each for each in yaml.safe_load_all(text)}
    template = JOBSET["properties"]["spec"]["properties"]["replicatedJobs"]["items"]["properties"]
    schemas = {"JobSet": JOBSET, "Job": template["template"]}
    for kind, schema in schemas.items():
        if kind in found:
            errors = list(Draft202012Validator(_closed(schema)).iter_errors(found[kind]))
            assert not errors, errors
    return found


def _closed(schema):
    """A schema that refuses what it does not name."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        known = inner["properties"]
        if not known.keys() & {"apiVersion", "metadata"}:
            inner.setdefault("additionalProperties", False)
    return inner


def test_a_jobset_of_tpu_slices(given, tmp_path):
    found = checked(given("jobset", "--target", "v6e:4x4", "--slices", "2", *K8S, "seed=5"))
    replicated = found["JobSet"]["spec"]["replicatedJobs"][0]
    spec = replicated["template"]["spec"]
    pod = spec["template"]["spec"]
    assert (replicated["replicas"], spec["completions"], spec["parallelism"]) == (2, 4, 4)
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"] == "tpu-v6e-slice"
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert pod["containers"][0]["resources"] == {"limits": {"google.com/tpu": 4}}
    files = found["ConfigMap"]
    assert files["metadata"]["name"] == pod["volumes"][0]["configMap"]["name"] == "a-b-files"
    path = tmp_path / "written.toml"
    path.write_text(files["data"]["run.toml"])
    stored = read(path, Config())
    assert (stored.steps, stored.seed, type(stored.layout)) == (7, 5, dict)


@pytest.mark.parametrize(
    ("target", "hosts"), [("v6e:2x4", 1), ("v6e:4x4", 4), ("v5p:2x2x1", 1), ("v5p:4x4x4", 16)]
)
def test_hosts_of_a_slice(target, hosts):
    assert hosts_of(find_target(target)) == hosts


@pytest.mark.parametrize("where", ["k8s", "jobset"])
def test_machines_with_gpus_are_told_where_the_first_is(given, where):
    found = checked(given(where, "--nodes", "4", "--gpus", "8", "--chdir", "/shared/code", *K8S))
    if where == "k8s":
        spec, first = found["Job"]["spec"], "a-b-0.a-b:1234"
        assert found["Service"]["spec"]["selector"] == {"job-name": "a-b"}
        assert spec["template"]["spec"]["subdomain"] == found["Service"]["metadata"]["name"]
    else:
        spec = found["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]
        first = "a-b-nodes-0-0.a-b:1234"
    container = spec["template"]["spec"]["containers"][0]
    told = {each["name"]: each["value"] for each in container["env"]}
    assert told == {"MESHDSL_COORDINATOR": first, "MESHDSL_PROCESSES": "4"}
    assert container["workingDir"] == "/shared/code"
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}


def test_pods_of_an_elastic_run_start_again_by_themselves(given):
    found = checked(given("k8s", "--nodes", "4", "--elastic", "2", *K8S))
    spec = found["Job"]["spec"]
    assert spec["template"]["spec"]["restartPolicy"] == "OnFailure" and "Service" not in found
    assert "completionMode" not in spec and "env" not in spec["template"]["spec"]["containers"][0]
    line = "meshdsl launch --elastic 2:4 --host $(hostname -i) -- train /meshdsl/run.toml"
    assert line in found["ConfigMap"]["data"]["run.sh"]


@pytest.mark.parametrize(
    ("done", "code", "expected"), [(True, 0, 0), (False, 0, 1), (False, 3, 3), (True, 3, 3)]
)
@pytest.mark.parametrize("told", [False, True], ids=["by itself", "told to end"])
def test_the_script_of_a_pod_fails_unless_the_run_is_done(
    given, tmp_path, done, code, expected, told
):
    out = tmp_path / "shared"
    words = [word.replace("/shared", str(out)) for word in K8S]
    text = given("k8s", "--nodes", "4", *words)
    script = checked(text)["ConfigMap"]["data"]["run.sh"]
    if done:
        (out / "runs/A_b/checkpoints/7").mkdir(parents=True)
    ends = f"trap 'exit {code}' TERM; kill -TERM $PPID; while :; do sleep 0.05; done"
    program = 'echo $MESHDSL_PROCESS_ID > "$LOG/number"\n' + (ends if told else f"exit {code}")
    numbered = {"MESHDSL_PROCESSES": "4", "JOB_COMPLETION_INDEX": "2"}
    found = executed(script, tmp_path, {"meshdsl": program}, LOG=str(tmp_path), **numbered)
    assert found == expected and (tmp_path / "number").read_text() == "2\n"


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "words", "why"),
    [
        ("slurm", ["--nodes", "2", "--elastic", "3"], "--elastic 3: more than the 2 of --nodes"),
        ("slurm", ["--nodes", "2", "--each", "seed"], "seed=: expected a whole number"),
        ("slurm", ["--nodes", "2", "--each", "sed=1"], "no setting `sed`"),
        ("slurm", ["--nodes", "2", "stepz=3"], "did you mean `steps`?"),
        ("k8s", ["--nodes", "2", *K8S[2:4], "--volume", "x"], "--volume x: expected CLAIM:PATH"),
        ("k8s", ["--nodes", "2", *K8S[2:4]], "is on none of the volumes (none); see --volume"),
        ("jobset", K8S[2:], "say which machines: --target v6e:4x4 with --slices, or --nodes N"),
        ("jobset", ["--target", "h100:8", *K8S[2:]], "--target h100:8: expected a TPU slice"),
        (
            "jobset",
            ["--target", "v6e:4x4", "--nodes", "2", *K8S[2:]],
            "--target: says how many hosts a slice has, without --nodes, --gpus",
        ),
    ],
)
def test_mistakes_are_one_line(given, where, words, why):
    said = given(where, "--out", "/shared/runs/a", "--dry-run", *words)
    assert said.startswith("2 meshdsl submit") and why in said and said.count("\n") == 1


def test_a_value_that_is_no_word_is_no_run_of_its_own(tmp_path):
    with pytest.raises(MeshDSLError, match="--each a=b c: expected a setting with values"):
        slurm_script(job(tmp_path), each="a=b c")


def test_where_there_is_no_slurm_that_is_said(given, monkeypatch):
    monkeypatch.setenv("PATH", "")
    said = given("slurm", "--out", "/shared/runs/a", "--nodes", "2")
    assert "sbatch is not on this machine; --dry-run prints what it would be given" in said


def test_what_slurm_says_is_passed_on(given, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for lines, expected in (
        ("cat > /dev/null; echo Submitted batch job 3", "Submitted batch job 3\n"),
        ("echo no such partition >&2; exit 1", "sbatch refuses it: no such partition"),
    ):
        path = tmp_path / "sbatch"
        path.write_text(f"#!/bin/bash\n{lines}\n")
        path.chmod(0o755)
        assert expected in given("slurm", "--out", "/shared/runs/a", "--nodes", "2")
