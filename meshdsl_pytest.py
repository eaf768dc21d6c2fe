"""The plugin of pytest: virtual devices, a test for each layout, and promises written anew.

pytest loads it in every run where meshdsl is installed, so it imports neither meshdsl nor JAX
before a test asks for what is here, and changes nothing else.

    meshdsl_devices = 8                     in the configuration of pytest: how many devices
    pytest --meshdsl-devices 4              the same for one run
    pytest --meshdsl-update                 `assert_golden` writes its files
    virtual_devices                         a fixture: the devices
    @pytest.mark.layouts("all")             the test runs for each layout, its argument `layout`

See docs/testing.md.
"""

from __future__ import annotations

import glob
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

DEVICES = 8
MARK = (
    'layouts(*which): the test runs under each of these layouts, its argument `layout`: "all" that '
    "come with meshdsl, names of these, or files, relative to the root directory of pytest"
)
FITS = "layout_may_not_fit: the test is skipped where its layout does not fit the model"
FLAG = "xla_force_host_platform_device_count"  # of XLA, an older way to say how many devices


def pytest_addoption(parser: pytest.Parser) -> None:
    """Two options, and one of them as a line of the configuration too."""
    group = parser.getgroup("meshdsl")
    many = f"how many virtual CPU devices tests of meshdsl run on (default: {DEVICES})"
    group.addoption("--meshdsl-devices", type=int, metavar="N", help=many)
    group.addoption(
        "--meshdsl-update",
        action="store_true",
        help="assert_golden of meshdsl.testing writes its files, and compares with none",
    )
    parser.addini("meshdsl_devices", many)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Tell JAX how many devices to make, where a number was asked for, before it is imported."""
    if _asked(early_config, early_config.known_args_namespace):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(_count(early_config)))


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks, and say that files are written."""
    config.addinivalue_line("markers", MARK)
    config.addinivalue_line("markers", FITS)
    if config.getoption("meshdsl_update"):
        os.environ["MESHDSL_UPDATE"] = "1"  # as meshdsl.testing reads it


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each layout of the mark."""
    mark = metafunc.definition.get_closest_marker("layouts")
    if mark is None:
        return
    if not mark.args or mark.kwargs:
        pytest.fail('the mark is layouts("all"), or names or files', pytrace=False)
    root = metafunc.config.rootpath
    metafunc.parametrize("layout", [case for word in mark.args for case in _cases(word, root)])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Make the devices before the fixtures of a test that has the mark."""
    if item.get_closest_marker("layouts"):
        _devices(item.config)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    """Skip a test whose layout does not fit the model, where "all" brought it and no name."""
    try:
        return (yield)
    except ValueError as error:
        errors = sys.modules.get("meshdsl.errors")
        if (
            errors is None
            or not isinstance(error, errors.LayoutDoesNotFit)
            or not pyfuncitem.get_closest_marker("layout_may_not_fit")
        ):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def virtual_devices(pytestconfig: pytest.Config) -> list:
    """The devices, as many as `--meshdsl-devices` says: virtual ones, without an accelerator."""
    return _devices(pytestconfig)


def _asked(config: pytest.Config, options: Any) -> int | str | None:
    """The number that the command line or the configuration has, where one of them has any."""
    return options.meshdsl_devices or config.getini("meshdsl_devices")


def _count(config: pytest.Config, options: Any = None) -> int:
    asked = _asked(config, options or config.known_args_namespace) or DEVICES
    if not str(asked).isdecimal() or int(asked) < 1:
        raise pytest.UsageError(f"meshdsl_devices is a number of at least 1, not {asked!r}")
    return int(asked)


def _devices(config: pytest.Config) -> list:
    """So many devices of JAX, which are made unless it has made its own."""
    jax, count = import_module("jax"), _count(config, config.option)
    if jax.config.jax_num_cpu_devices < count and FLAG not in os.environ.get("XLA_FLAGS", ""):
        try:
            jax.config.update("jax_num_cpu_devices", count)
            if not jax.config.jax_platforms:
                jax.config.update("jax_platforms", "cpu")
        except RuntimeError:
            pass  # JAX has made its devices; there may be enough
    found = jax.devices()
    if len(found) < count:
        pytest.fail(
            f"{count} devices are needed, and JAX has made {len(found)} ({found[0].platform}) "
            "before this test began, as it does where a module makes an array; write "
            f"`meshdsl_devices = {count}` in the configuration of pytest, which is read before "
            "modules are imported",
            pytrace=False,
        )
    return found[:count]


def _cases(which: Any, root: Path) -> list:
    """The cases of `parametrize` that one word of the mark stands for."""
    layouts = import_module("meshdsl.layout")
    if which == "all":
        mark = pytest.mark.layout_may_not_fit
        loaded = {name: layouts.Layout.load(path) for name, path in layouts.shipped().items()}
        return [pytest.param(layout, id=name, marks=mark) for name, layout in loaded.items()]
    if isinstance(which, layouts.Layout):
        return [pytest.param(which, id=which.name)]
    if not str(which).endswith(".toml"):
        return [pytest.param(layouts.Layout.load(layouts.shipped().get(which, which)), id=which)]
    files = sorted(glob.glob(str(which), root_dir=root, recursive=True))
    if not files:
        pytest.fail(f"layouts({str(which)!r}): there is no such file in {root}", pytrace=False)
    return [pytest.param(layouts.Layout.load(root / file), id=Path(file).stem) for file in files]
