"""What each chip can do, read from `hardware.toml` and from a file of the user's own.

A figure in these files, as `{ value = 459, unit = "TFLOP/s", source = "https://..." }`, is that of
one chip. A `Chip` states it for one JAX device, because programs, memory and times are counted
for devices, and JAX lists some chips as two devices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import jax

from meshdsl.errors import MeshDSLError, nearest, quote
from meshdsl.machine.measured_collectives import Curve, checked_curves
from meshdsl.machine.overlap import Overlap, checked_collectives, checked_overlap
from meshdsl.parsing import parse_toml

# The share of a chip's FLOP/s that is assumed of fused kernels, such as those of attention, which
# have no cycles in a compiler's schedule. It is the low end of what FlashAttention-2 reaches on an
# A100, 50% to 73% (Dao, 2023).
FUSED_EFFICIENCY = 0.5
# By the part of a dtype's name in front of a `_`: the figure that says how fast its products are.
_FASTER = {"int8": "int8_speedup", "float8": "fp8_speedup", "float4": "fp4_speedup"}

# The kinds of work that have a residual. A `product` is a kernel with a matrix product; a `pass` is
# element-wise code, a reduction or a copy; `fused` is a kernel whose speed is assumed, such as that
# of attention; a `collective` counts for as long as the device waits for it. What a whole step is
# off besides, under every layout alike (`step`) and under one layout alone (`layout`), may be left
# out.
RESIDUALS = ("product", "pass", "fused", "collective", "step", "layout")

TABLE = Path(__file__).with_name("hardware.toml")

# For each unit: what it measures, and how much one of it is in FLOP/s, bytes, bytes/s, seconds, Hz
# or elements/s.
_UNITS: dict[str, tuple[str, float]] = {
    "1": ("number", 1),
    "TFLOP/s": ("compute", 1e12),
    "GB": ("memory", 1e9),
    "GiB": ("memory", 2**30),
    "KiB": ("size", 2**10),
    "MiB": ("size", 2**20),
    "GB/s": ("bandwidth", 1e9),
    "Gbit/s": ("bandwidth", 1e9 / 8),
    "us": ("time", 1e-6),
    "GHz": ("frequency", 1e9),
    "Gelem/s": ("elements", 1e9),
}


_EVERY = "tpu gpu cpu"


def _figure(
    measures: str, default: Any = 0.0, *, shared: bool = False, must: str = "tpu gpu"
) -> Any:
    """A field for a figure.

    Args:
      measures: one of the measures of `_UNITS`.
      shared: whether the devices of a chip share it evenly.
      must: the kinds of chips that must have it; `cpu` for one that has any figure.
    """
    return field(default=default, metadata={"figure": measures, "shared": shared, "must": must})


def _key(kinds: str, type: type, default: Any = None, *, must: bool = True) -> Any:
    """A field for another key, of a type, that chips of these `kinds` have.

    Those of a `cpu` may be left out, but for its `device_kind`.
    """
    told = {"kinds": kinds.split(), "type": type, "must": _EVERY if must else ""}
    if type is dict:
        return field(default_factory=dict, hash=False, metadata=told)
    return field(default=default, metadata=told)


@dataclass(frozen=True)
class Chip:
    """A chip, with its figures for one JAX device.

    Attributes:
      name: as in targets, `v5p`.
      kind: `tpu`, `gpu` or `cpu`. A `cpu` stands for virtual devices; its figures are 0, and its
        `hbm` is None, unless `meshdsl calibrate` has measured them on a machine.
      device_kind: what `jax.Device.device_kind` says.
      devices_per_chip: how many devices JAX lists for one chip.
      flops: peak FLOP/s of dense products in bfloat16.
      hbm: bytes of memory that a program can use.
      hbm_bandwidth: bytes/s of the memory.
      clock: Hz of the cycles that the compiler counts.
      tile: edge of the matrix unit; dims of a product are padded to it.
      matmul_efficiency: the share of `flops` that large products reach.
      grouped_efficiency: the share of `flops` that kernels of products of groups of rows reach.
      hbm_efficiency: the share of `hbm_bandwidth` that large copies reach.
      vector_rate: elements/s that pass the vector unit; 0 where that is no limit.
      array_rate: elements/s of all arrays that a kernel without a product reads and writes, beside
        `vector_rate`; 0 where that is no limit.
      product_latency: seconds that a product takes beside what its size takes.
      result_rate: elements/s of results that leave the matrix unit; 0 where that is no limit.
      operand_rate: the same of operands that enter it.
      prologue_rate, epilogue_rate: elements/s of the arrays that the kernel of a product computes
        its operands from, and of those that it reads and writes beside the result, while the
        matrix unit waits; 0 where that is no limit.
      fetched: bytes of an array of which half are in fast memory when a kernel reads them; 0 where
        there is none.
      kept: bytes of an array of which half are left in fast memory by the kernel that writes them.
      bare_rate: elements/s of a single operation that is not fused, such as a conversion.
      reorder_rate: elements/s of copies into another order of dims, from memory to memory.
      float32_slowdown: how many times longer a product of float32 takes than one of bfloat16.
      int8_speedup, fp8_speedup, fp4_speedup: how many times faster a product of these is than one
        of bfloat16; 1 for a chip that computes it in bfloat16.
      kernel_latency: the least seconds of a kernel that touches more than a few numbers.
      small_sum: the device waits for sums of fewer bytes; 0 where there is no such limit.
      link_bandwidth: bytes/s one way, of one link of a torus or of a GPU into its node's switch.
      link_latency: seconds of a hop.
      link_efficiency: the share of the bandwidth that collectives reach, on every network.
      core_bandwidth: bytes/s one way between the two devices of a chip.
      scale_out_bandwidth: bytes/s one way of one device to other slices or nodes.
      scale_out_latency: seconds of a hop between slices or nodes.
      dims: how many dims the torus has.
      longest: the most chips along one dim of the torus; the dim is a ring only when it has that
        many. 0 where there is no such rule.
      cube: a dim of the torus above this size is a multiple of it; all dims are rings when all are
        multiples, and none is otherwise. 0 where there is no such rule.
      most_chips: of one slice.
      topology_options: what libtpu needs besides the name of a topology.
      waits: of a GPU or a CPU, the collectives during which the device does not compute.
      overlap: of a TPU, how the compiler runs collectives over axes of each form
        (`overlap.FORMS`), with the `options`.
      options: of the compiler, by name, that let collectives run while the device computes.
      options_of_parts: further ones, for meshes of which no axis is a whole slice.
      compiler: what XLA's compiler asks of a GPU besides the figures, by the names of XLA's
        `GpuDeviceInfoProto`; empty for a GPU that cannot be compiled for.
      node: how many GPUs are on one switch, or how many devices of a CPU one process has.
      step_latency: seconds from the call of a compiled step to its first kernel, and back.
      operand_bandwidth: bytes/s at which a compiler that copies operands and results of products
        into the order that it multiplies in does so; 0 where it does not.
      fresh_bandwidth: bytes/s of the memory that a step takes beside its arguments, because the
        machine hands it over each time anew; 0 where that is no limit.
      collectives: times of collectives that were measured, which go before what the figures of
        links say; by collective and by form of the group.
      residuals: how far estimates were off on programs that the figures were not fitted to: the
        standard deviation of the logarithm of real to estimated seconds, by kind of work
        (`RESIDUALS`). Empty where that is not known.
      imbalance: how many times the mean load the most loaded device has, of what depends on data,
        as the tokens of the experts of a device do. All others wait for it.
      source: where the keys that are no figures are from.
      sources: for each figure where it is from.
    """

    name: str
    kind: str
    device_kind: str = _key("tpu gpu cpu", str)
    devices_per_chip: int = _key("tpu", int, 1, must=False)
    flops: float = _figure("compute", shared=True, must=_EVERY)
    hbm: int | None = _figure("memory", None, shared=True, must=_EVERY)
    hbm_bandwidth: float = _figure("bandwidth", shared=True, must=_EVERY)
    clock: float = _figure("frequency")
    tile: int = _figure("number", 1)
    matmul_efficiency: float = _figure("number", 1.0)
    grouped_efficiency: float = _figure("number", FUSED_EFFICIENCY, must="")
    hbm_efficiency: float = _figure("number", 1.0)
    vector_rate: float = _figure("elements", shared=True, must="")
    array_rate: float = _figure("elements", shared=True, must="")
    product_latency: float = _figure("time", must="")
    result_rate: float = _figure("elements", shared=True, must="")
    operand_rate: float = _figure("elements", shared=True, must="")
    prologue_rate: float = _figure("elements", shared=True, must="")
    epilogue_rate: float = _figure("elements", shared=True, must="")
    fetched: float = _figure("size", shared=True, must="")
    kept: float = _figure("size", shared=True, must="")
    bare_rate: float = _figure("elements", shared=True, must="")
    reorder_rate: float = _figure("elements", shared=True, must="")
    float32_slowdown: float = _figure("number", 1.0, must="")
    int8_speedup: float = _figure("number", 1.0, must="")
    fp8_speedup: float = _figure("number", 1.0, must="")
    fp4_speedup: float = _figure("number", 1.0, must="")
    kernel_latency: float = _figure("time", must="")
    small_sum: float = _figure("size", must="")
    step_latency: float = _figure("time", must="")
    operand_bandwidth: float = _figure("bandwidth", must="")
    fresh_bandwidth: float = _figure("bandwidth", must="")
    link_bandwidth: float = _figure("bandwidth", shared=True)
    link_latency: float = _figure("time")
    link_efficiency: float = _figure("number", 1.0)
    core_bandwidth: float = _figure("bandwidth", must="")
    scale_out_bandwidth: float = _figure("bandwidth", shared=True)
    scale_out_latency: float = _figure("time")
    dims: int = _key("tpu", int, 1)
    longest: int = _key("tpu", int, 0, must=False)
    cube: int = _key("tpu", int, 0, must=False)
    most_chips: int = _key("tpu", int, 0)
    topology_options: Mapping[str, Any] = _key("tpu", dict, must=False)
    node: int = _key("gpu cpu", int, 0)
    waits: tuple[str, ...] = _key("gpu cpu", list, ())
    overlap: Mapping[str, Overlap] = _key("tpu", dict)
    options: Mapping[str, str] = _key("tpu gpu", dict, must=False)
    options_of_parts: Mapping[str, str] = _key("tpu", dict, must=False)
    compiler: Mapping[str, Any] = _key("gpu", dict, must=False)
    collectives: Mapping[str, Mapping[str, Curve]] = _key("tpu gpu cpu", dict, must=False)
    residuals: Mapping[str, float] = _key("tpu gpu cpu", dict, must=False)
    imbalance: float = 1.0
    source: str = _key("tpu gpu cpu", str, "")
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def timed(self) -> bool:
        """Whether times can be estimated: the chip has figures."""
        return self.flops > 0

    def slowdown(self, dtype: str) -> float:
        """How many times longer a product of a dtype, by NumPy's name, takes than of bfloat16."""
        if dtype == "float32":
            return self.float32_slowdown
        figure = _FASTER.get(dtype.partition("_")[0])
        return 1 / getattr(self, figure) if figure else 1.0

    @property
    def offloads(self) -> bool:
        """Whether sparse cores carry collectives, and nothing of them is left to other kernels."""
        return any("sparse_core" in option for option in self.options)

    def overlap_over(self, form: str) -> Overlap:
        """How the compiler runs collectives over axes of a form, empty for those between slices."""
        return self.overlap.get(form, Overlap(waits=self.waits))


def chips(path: Path | None = None) -> dict[str, Chip]:
    """The known chips by name.

    Args:
      path: a file in the format of `hardware.toml`. It adds chips, or replaces single figures of
        known ones.

    Raises:
      MeshDSLError: the file cannot be read, or a key or figure is unknown, malformed or missing.
    """
    if path is None:
        return dict(_builtin())
    tables = _read(TABLE)
    for name, table in _read(Path(path)).items():
        if not isinstance(table, dict):
            raise MeshDSLError(
                f"{path}: `{name}` stands outside a chip's table; begin one with `[name]`"
            )
        tables[name] = {**tables.get(name, {}), **table}
    return {name: _chip(name, table, str(path)) for name, table in tables.items()}


def unit_of(figure: str) -> tuple[str, float]:
    """The first unit of a figure such as `flops`, and how much one of it is in the base unit."""
    measures = {f.name: f.metadata.get("figure") for f in fields(Chip)}[figure]
    return next((unit, scale) for unit, (what, scale) in _UNITS.items() if what == measures)


def chip_of(
    device: jax.Device,  # pyright: ignore[reportInvalidTypeForm]  # a class, which JAX re-exports by an assignment
) -> Chip | None:
    """The chip of a device; None for one that is unknown or has no figures."""
    for chip in _builtin().values():
        if chip.device_kind == device.device_kind and chip.timed:
            return chip
    return None


@functools.cache
def _builtin() -> dict[str, Chip]:
    return {name: _chip(name, table, TABLE.name) for name, table in _read(TABLE).items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as e:
        raise MeshDSLError(
            f"hardware table {path}: cannot be read: {getattr(e, 'strerror', None) or e}"
        ) from e
    except ValueError as e:
        raise MeshDSLError(f"hardware table {path}: {e}") from e


def _chip(name: str, table: Mapping[str, Any], file: str) -> Chip:
    """The chip that a table of the file describes; `file` is its name, for errors."""
    where = f"{file}, chip `{name}`"
    kind = table.get("kind")
    if kind not in ("tpu", "gpu", "cpu"):
        raise MeshDSLError(f"{where}: `kind` is `tpu`, `gpu` or `cpu`, not {quote(kind)}")
    declared = {f.name: f.metadata for f in fields(Chip)}
    keys = {key: told for key, told in declared.items() if kind in told.get("kinds", ())}
    keys |= {key: told for key, told in declared.items() if "figure" in told}
    for key in table:
        if key not in ("kind", *keys):
            raise MeshDSLError(f"{where}: unknown key `{key}`{nearest(key, ['kind', *keys])}")
    if missing := [f"`{key}`" for key in _needed(kind, keys, table) if key not in table]:
        raise MeshDSLError(f"{where}: {', '.join(missing)} missing")
    given, sources = {}, {}
    for key, told in keys.items():
        if key not in table:
            continue
        if "figure" not in told:
            given[key] = _checked(key, table[key], told["type"], where)
            continue
        value = _checked_figure(key, table[key], told["figure"], where)
        if told["shared"]:
            value /= given.get("devices_per_chip", 1)
        given[key] = int(value) if key in ("tile", "hbm") else value
        sources[key] = table[key]["source"]
    return Chip(name=name, kind=kind, sources=sources, **given)


def _needed(kind: str, keys: Mapping[str, Any], table: Mapping[str, Any]) -> list[str]:
    """The keys that a chip of a kind must have; a `cpu` without figures only its device's kind."""
    if kind == "cpu" and not any("figure" in keys[key] for key in table if key in keys):
        return ["device_kind"]
    return [key for key, told in keys.items() if kind in told["must"].split()]


def _checked(key: str, value: Any, kind: type, where: str) -> Any:
    """The value of a key that is no figure, if it is of the type `kind`."""
    if not isinstance(value, kind) or (kind is int and (isinstance(value, bool) or value < 1)):
        words = {
            str: "a text",
            int: "a whole number of at least 1",
            dict: "a table",
            list: "a list of collectives",
        }
        raise MeshDSLError(f"{where}: `{key}` is {words[kind]}, not {quote(value)}")
    if key == "collectives":
        return checked_curves(value, where)
    if key == "residuals":
        return _checked_residuals(value, where)
    if key == "overlap":
        return checked_overlap(value, where)
    if kind is list:
        return checked_collectives(value, key, where)
    if key in ("options", "options_of_parts"):
        for option, text in value.items():
            if not isinstance(text, str):
                raise MeshDSLError(
                    f'{where}: `{key}.{option}` is a text such as "True", not {quote(text)}'
                )
    if key == "dims" and value > 3:
        raise MeshDSLError(f"{where}: `dims` is 1, 2 or 3, not {value}")
    return value


def _checked_residuals(table: Mapping[str, Any], where: str) -> Mapping[str, float]:
    """The key `residuals`, if it has a number for each kind of work."""
    for kind, value in table.items():
        if kind not in RESIDUALS:
            raise MeshDSLError(
                f"{where}: `residuals` has {quote(kind)}, which is no kind of work"
                f"{nearest(kind, RESIDUALS)}; they are {', '.join(RESIDUALS)}"
            )
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value < math.inf:
            raise MeshDSLError(
                f"{where}: `residuals.{kind}` is a number of at least 0, not {quote(value)}"
            )
    if table and (missing := [kind for kind in RESIDUALS[:4] if kind not in table]):
        raise MeshDSLError(f"{where}: `residuals` has no {', '.join(map(quote, missing))}")
    return table


def _checked_figure(key: str, figure: Any, measure: str, where: str) -> float:
    """The value of a figure in the base unit of what it measures (`_UNITS`)."""
    units = [unit for unit, (what, _) in _UNITS.items() if what == measure]
    form = f'{{ value = ..., unit = "{units[0]}", source = "..." }}'
    if not isinstance(figure, dict) or set(figure) != {"value", "unit", "source"}:
        found = figure if isinstance(figure, dict) else quote(figure)
        raise MeshDSLError(f"{where}: `{key}` is a figure, {form}, not {found}")
    value, unit = figure["value"], figure["unit"]
    if unit not in units:
        raise MeshDSLError(
            f"{where}: the unit of `{key}` is {' or '.join(units)}, not {quote(unit)}"
        )
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise MeshDSLError(f"{where}: the value of `{key}` is a number above 0, not {quote(value)}")
    if not isinstance(figure["source"], str) or not figure["source"]:
        raise MeshDSLError(
            f'{where}: the source of `{key}` is a text: an address, "measured" or "unverified"'
        )
    return value * _UNITS[unit][1]
