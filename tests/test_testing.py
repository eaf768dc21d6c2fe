"""`meshdsl.testing` and the plugin of pytest: what passes, what fails, and what is said then."""

import os
import re
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import meshdsl as md
from meshdsl.errors import LayoutDoesNotFit
from meshdsl.program.collective import Collective
from meshdsl.testing import assert_collectives, assert_golden, assert_same_under, collectives
from meshdsl.testing.equal import assert_equal, difference
from tests.helpers import data, dims, weight

pytest_plugins = "pytester"

ROOT = Path(__file__).parents[1]
A, B, C = dims(a=8, b=4, c=6)
X = data(A, B)
MODEL = {"up": weight(B, C), "down": weight(C, B, seed=2)}
SPLIT = md.Layout(["a -> data", "b -> model"], mesh={"data": 2, "model": 2}, name="split")
ON_DATA = md.Layout(["a -> data"], ["b -> data"], mesh={"data": 4}, name="data")


def loss(model, x):
    hidden = md.relu(md.einsum(x, model["up"], out=(A, C)))
    return {"loss": md.mean(md.einsum(hidden, model["down"], out=(A, B)) ** 2), "hidden": hidden}


@jax.custom_vjp
def _wrong_gradient(x):
    return x


_wrong_gradient.defvjp(lambda x: (x, None), lambda _, ct: (ct * ct.shape[0],))


def test_a_function_is_the_same_under_layouts_of_every_kind(tmp_path):
    (tmp_path / "mine.toml").write_text('[mesh]\ndata = 2\n\n[layout]\nrules = ["a -> data"]\n')
    table = {"mesh": {"x": 2}, "layout": {"rules": ["c -> x"]}}
    assert_same_under(loss, (MODEL, X), [SPLIT, ON_DATA, tmp_path / "mine.toml", table])
    assert_same_under(loss, [MODEL, X], "single", gradients=1)


def test_other_values_under_a_layout_fail_by_name():
    def wrong(x):
        return {"right": x * 2, "sums": md.local(lambda x: jnp.cumsum(x, 0), x, out=(A, B))}

    said = r"^split: result\['sums'\] differs by 0.\d+, more than 1e-05$"
    with pytest.raises(AssertionError, match=said):
        assert_same_under(wrong, (X,), [md.Layout(["b -> model"], mesh={"model": 2}), SPLIT])


def test_other_gradients_under_a_layout_fail_by_name():
    def wrong(model, x):
        return md.local(_wrong_gradient, x, out=(A, B)) * model["scale"], model["shift"] * 2

    model = {"scale": weight(A), "shift": weight(B)}
    assert_same_under(wrong, (model, X), SPLIT)  # of parameters they are right
    assert_same_under(wrong, (model, X), SPLIT, gradients=False)
    with pytest.raises(AssertionError, match=r"^split: gradient of args\[1\] differs by 0.5, more"):
        assert_same_under(wrong, (model, X), SPLIT, gradients=[0, 1])


def test_of_several_that_differ_the_first_is_named():
    with pytest.raises(AssertionError, match=r"^data: \S+ differs by .*; \d of 4 leaves differ$"):
        assert_same_under(loss, (MODEL, X), ON_DATA, tolerance=-1.0)


def test_what_the_compiler_adds_is_found(monkeypatch):
    added = [Collective("all_gather", ("data",), 2, 8, "float32")]
    monkeypatch.setattr(collectives, "from_hlo", lambda text, mesh: added)
    said = "data: the compiler made all_gather over data: 2, of these: psum over data: 1"
    with pytest.raises(AssertionError, match=said):
        assert_same_under(md.sum, (X,), md.Layout(["a -> data"], mesh={"data": 4}, name="data"))


@pytest.mark.parametrize(
    "rule, said",
    [
        ("c -> data", "layout, rule 1: no dim `c` in `tan`; known: `a`, `b`"),
        ("b -> data", "layout, rule 1.*: `b`=4 does not divide over `data`=8"),
    ],
)
def test_a_layout_that_does_not_fit_is_an_error_that_says_so(rule, said):
    with pytest.raises(LayoutDoesNotFit, match=said):
        assert_same_under(md.tan, (X,), md.Layout([rule], mesh={"data": 8}))


def test_too_few_devices_are_one_too():
    with pytest.raises(LayoutDoesNotFit, match="needs 16 devices and 8 are given"):
        assert_same_under(md.tan, (X,), md.Layout(["a -> data"], mesh={"data": 16}))


def test_wrong_arguments_are_errors():
    with pytest.raises(md.MeshDSLError, match="the arguments as a tuple, not of type Tensor"):
        assert_same_under(md.tan, X, "single")
    with pytest.raises(md.MeshDSLError, match="positions of arguments, of 0 to 0, not 1"):
        assert_same_under(md.tan, (X,), "single", gradients=1)
    with pytest.raises(md.MeshDSLError, match="layout fsdq: no such file"):
        assert_same_under(md.tan, (X,), "fsdq")


def test_in_what_two_trees_differ():
    assert not difference(X, md.transpose(X, (B, A)))
    assert not difference(jax.random.key(1), jax.random.key(1))
    assert difference(jax.random.key(1), jax.random.key(2)) == "differs"
    assert difference(X.array, X) == "is an array instead of a Tensor"
    assert difference(md.cast(X, jnp.bfloat16), X) == "is of bfloat16 instead of float32"
    assert "has the dims" in difference(md.rename(X, B, "z"), X)
    with pytest.raises(AssertionError, match=r"^of x\['b'\] differs by 1, more than 1e-05$"):
        assert_equal({"a": 1, "b": X * 2}, {"a": 1, "b": X}, "of x")


def test_collectives_are_those_of_the_text():
    lowered = md.lower(loss, SPLIT)
    text = "# of two sums\n\npsum over model: 1\n  psum over model, data: 1\n"
    assert_collectives(lowered, (MODEL, X), text)
    assert_collectives(lowered, (MODEL, X), text.splitlines())
    assert_collectives(md.lower(md.tan, SPLIT), (X,), "")


def test_other_collectives_are_shown_line_by_line():
    text = "psum over model: 2\nall_gather over data: 1\npsum over data, model: 1"
    with pytest.raises(AssertionError) as error:
        assert_collectives(md.lower(loss, SPLIT), (MODEL, X), text)
    assert str(error.value).splitlines() == [
        "the collectives of `loss` under split are others (- expected, + found):",
        "- all_gather over data: 1",
        "  psum over data, model: 1",
        "- psum over model: 2",
        "+ psum over model: 1",
    ]


@pytest.mark.parametrize(
    "line, said",
    [
        ("psum model", "'psum model' is no line such as 'psum over model: 2'"),
        ("pusm over model: 2", "`pusm` in .* is not a collective; did you mean `psum`"),
        ("psum over modle: 2", "`modle` in .* is not an axis of the mesh; did you mean `model`"),
    ],
)
def test_a_line_that_is_misspelt_is_an_error(line, said):
    with pytest.raises(md.MeshDSLError, match=said):
        assert_collectives(md.lower(loss, SPLIT), (MODEL, X), line)


def test_a_golden_file_is_written_kept_and_compared(tmp_path, monkeypatch):
    golden = lambda path, layout=SPLIT: assert_golden(md.lower(loss, layout), (MODEL, X), path)
    with pytest.raises(AssertionError, match="no such file; `pytest --meshdsl-update` writes it"):
        golden(tmp_path / "golden")
    monkeypatch.setenv("MESHDSL_UPDATE", "1")
    golden(tmp_path / "golden")
    monkeypatch.delenv("MESHDSL_UPDATE")
    (file,) = (tmp_path / "golden").iterdir()
    assert file.name == "loss-split.txt"
    golden(file)
    lines = file.read_text().splitlines()
    assert lines[0] == "# The collectives of `loss` under split, mesh: data=2, model=2."
    assert lines[3].split() == "where pass collective axis count bytes op".split()
    assert "each call  forward  psum        model        1      96     settle[a_data, c]" in lines
    file.write_text(file.read_text().replace("96 ", "48 "))
    with pytest.raises(AssertionError, match="promises other collectives") as error:
        golden(file)
    assert [line[:4] for line in str(error.value).splitlines()[1:]] == ["-eac", "+eac"]
    (tmp_path / "a.txt").mkdir()
    monkeypatch.setenv("MESHDSL_UPDATE", "1")
    with pytest.raises(md.MeshDSLError, match="assert_golden, .*a.txt: Is a directory"):
        golden(tmp_path / "a.txt")


@pytest.fixture
def plugin(pytester, monkeypatch):
    """Runs pytest in a folder of its own, with the plugin, strict about marks."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    how = ("-p", "meshdsl_pytest", "--strict-markers", "-rsfE", "-p", "no:cacheprovider")
    return lambda run, *options: run(*how, *options)


def test_a_run_with_the_plugin(pytester, plugin):
    """The program of docs/testing.md, and tests of which layout fits and which does not."""
    page = (ROOT / "docs/testing.md").read_text()
    example = "".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    (table,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    pytester.makepyprojecttoml(table.replace("8", "4"))
    pytester.makeconftest(
        "import sys\nassert not {'jax', 'meshdsl'} & set(sys.modules), 'the plugin is light'"
    )
    pytester.mkdir("mine").joinpath("own.toml").write_text(
        '[mesh]\nrow = 4\n\n[layout]\nrules = ["a -> row"]\n'
    )
    pytester.makepyfile(
        test_page=example.replace('layouts("all")', 'layouts("fsdp")'),
        test_layouts="""
            import jax
            import pytest
            import meshdsl as md

            A = md.Dim("a", 8)
            X = md.tensor(jax.numpy.ones(8), A)

            @pytest.mark.layouts("all")
            def test_all(layout):
                md.lower(md.tan, layout).program(X)

            @pytest.mark.layouts("fsdp", "mine/*.toml", md.Layout(["a -> x"], mesh={"x": 2}))
            def test_named(layout):
                md.lower(md.tan, layout).program(X)

            def test_devices(virtual_devices):
                assert len(virtual_devices) == len(jax.devices()) == 4
                assert virtual_devices[0].platform == "cpu"
            """,
    )
    result = plugin(pytester.runpytest_subprocess, "--meshdsl-update")
    said = "\n".join(result.outlines)
    outcomes = result.parseoutcomes()
    shipped = len(list((ROOT / "layouts").glob("*.toml")))
    assert outcomes["failed"] == 1 and outcomes["passed"] + outcomes["skipped"] == shipped + 8, said
    assert outcomes["skipped"] > shipped / 2
    assert "no dim `batch` in `tan`" in said and "FAILED test_layouts.py::test_named[fsdp]" in said
    golden = {path.name for path in (pytester.path / "golden").iterdir()}
    assert golden == {"loss-fsdp.txt", "loss-tensor.txt"}


def test_what_the_plugin_says_of_mistakes(pytester, plugin, monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")  # so that this run leaves it as it is
    pytester.makepyfile(
        test_devices="def test_devices(virtual_devices): pass",
        test_no_file="""
            import pytest
            @pytest.mark.layouts("mine/*.toml")
            def test_a(layout): pass
            """,
        test_no_word="""
            import pytest
            @pytest.mark.layouts
            def test_a(layout): pass
            """,
    )
    result = plugin(
        pytester.runpytest_inprocess, "--meshdsl-devices=99", "--continue-on-collection-errors"
    )
    said = "\n".join(result.outlines)
    assert "99 devices are needed, and JAX has made 8 (cpu) before this test began" in said
    assert "write `meshdsl_devices = 99` in the configuration of pytest" in said
    assert "layouts('mine/*.toml'): there is no such file in" in said
    assert 'the mark is layouts("all"), or names or files' in said


def test_an_install_brings_the_plugin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"meshdsl_pytest": "meshdsl_pytest"}
    assert "meshdsl_pytest" in project["tool"]["setuptools"]["py-modules"]
