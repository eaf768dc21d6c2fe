"""`from_jax`: a function of arrays, written in plain JAX, as one of Tensors."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from meshdsl.errors import MeshDSLError, nearest, quote
from meshdsl.lowering.scope import Scope
from meshdsl.mesh import abstract_mesh
from meshdsl.plain_jax import describe, rules, saving
from meshdsl.plain_jax.attention import recognise_attention
from meshdsl.plain_jax.calls import called
from meshdsl.plain_jax.evaluate import Evaluation
from meshdsl.plain_jax.fallback import fallback
from meshdsl.plain_jax.inference import Inference
from meshdsl.plain_jax.names import Spec, agreed, boxed_names, paths_of, specs_of
from meshdsl.plain_jax.packing import entering, packed, unpacked
from meshdsl.plain_jax.positions import as_tensor, evaluated_in, ordered, scope_of
from meshdsl.plain_jax.program import Program, Value, Variable, flatten
from meshdsl.plain_jax.recognise import recognise
from meshdsl.tensor import is_tensor, is_value

assert rules  # imported for the table that its files fill


class _Trace(NamedTuple):
    """The function for arguments of these shapes and dtypes.

    Attributes:
      paths: of the leaves of the arguments.
      counts: how many leaves each argument has.
      result: the structure of what the function returns.
      own: for each leaf the names that it brought as a Tensor of the user's, or None.
    """

    program: Program
    inference: Inference
    paths: list[str]
    counts: list[int]
    tree: Any
    result: Any
    own: list[Spec | None]


class FromJax:
    """A function of plain JAX with names for its dims, made by `from_jax`.

    Call it with Tensors, in a lowering or outside, as a function of the language. Arrays among the
    arguments are taken as whole on every device.
    """

    def __init__(
        self,
        fn: Callable,
        names: Mapping[str, str],
        sizes: Mapping[str, int],
        call: Mapping[str, str],
        parameters: int | None,
        *,
        strict: bool,
        recognise: bool,
    ):
        self._fn, self._names, self._sizes, self._call = fn, dict(names), dict(sizes), dict(call)
        self._parameters, self._strict, self._recognise = parameters, strict, recognise
        self._traces: dict[Any, _Trace] = {}
        self._fallbacks: dict[str, None] = {}
        self._lowered: Scope | None = None  # that of the latest lowering
        self.__name__ = getattr(fn, "__name__", "from_jax")

    def __call__(self, *args):
        """What the function returns for these arguments, as Tensors."""
        trace = self._traced(args)
        leaves = jax.tree.leaves(args, is_leaf=is_tensor)
        given = [entering(x, v) for x, v in zip(leaves, trace.program.invars, strict=True)]
        at = Evaluation(fallback, given, strict=self._strict)
        with evaluated_in(at.like):
            made = at.program(trace.program, given)
        self._fallbacks.update(at.fallbacks)
        self._lowered = scope_of(at.like) or self._lowered
        out = [
            x if v.is_key else ordered(as_tensor(x, v), v)
            for x, v in zip(made, trace.program.outvars, strict=True)
        ]
        return jax.tree.unflatten(trace.result, out)

    def describe(self, *args) -> str:
        """What was found for these arguments: dims, renames, and work that devices repeat.

        What runs on whole operands, and how much devices repeat in the forward pass, follows from
        the layout: both are those of the latest lowering, and before one there are none.

        Args:
          args: arrays, Tensors or `ShapeDtypeStruct`s; without any, those of the latest trace.
        """
        trace = self._traced(args) if args else self._latest("describe")
        arguments = zip(trace.paths, trace.program.invars, strict=True)
        return describe.text(trace.inference, arguments, self._fallbacks, self._repeats(trace))

    def _repeats(self, trace: _Trace) -> list[str]:
        """What devices repeat under the layout of the latest lowering."""
        if self._lowered is None:
            return []
        scope, traces, fallbacks = self._lowered, dict(self._traces), dict(self._fallbacks)
        shapes = [
            packed(jax.ShapeDtypeStruct(v.shape, v.dtype), v, parameter=False)
            for v in trace.program.invars
        ]
        args = jax.tree.unflatten(trace.tree, shapes)
        mesh = abstract_mesh(scope.sizes, scope.platform, scope.device_kind)
        found = describe.repeats(self, args, scope.layout, mesh)
        self._lowered, self._traces, self._fallbacks = scope, traces, fallbacks
        return found

    def pack(self, *args):
        """Arguments of the plain function as Tensors, by the factors of their dims.

        Those of one argument alone are found by the latest trace: call `describe` first, or give
        all arguments.

        Returns:
          A tuple of all arguments, or the first one, if it was given alone.
        """
        first_alone = len(args) == 1 and len(self._arguments(required=True)) > 1
        trace = self._traced_for_first(args[0]) if first_alone else self._traced(args)
        made, at = [], 0
        for number, arg in enumerate(args):
            flat, tree = jax.tree.flatten(arg, is_leaf=is_tensor)
            variables = trace.program.invars[at : at + len(flat)]
            at += len(flat)
            of_model = number == self._parameters
            made.append(
                jax.tree.unflatten(
                    tree,
                    [
                        packed(x, v, parameter=of_model)
                        for x, v in zip(flat, variables, strict=True)
                    ],
                )
            )
        return made[0] if len(args) == 1 else tuple(made)

    def unpack(self, tree, argument: int = 0):
        """Tensors with the structure of one of the arguments, such as gradients, as arrays."""
        trace = self._latest("unpack")
        start = sum(trace.counts[:argument])
        variables = trace.program.invars[start : start + trace.counts[argument]]
        return _unpacked(tree, variables, f"argument {argument}")

    def unpack_result(self, tree):
        """What a call returned, as arrays of the shapes that the plain function gives."""
        return _unpacked(tree, self._latest("unpack_result").program.outvars, "the result")

    def variables_of_first_trace(self, argument: int) -> list[Variable]:
        """What stands for the leaves of an argument in the oldest of the traces."""
        trace = next(iter(self._traces.values()))
        start = sum(trace.counts[:argument])
        return trace.program.invars[start : start + trace.counts[argument]]

    def _latest(self, what: str) -> _Trace:
        if not self._traces:
            raise MeshDSLError(
                f"from_jax, {what}: nothing has been traced yet; call `describe` with all arguments"
            )
        return next(reversed(self._traces.values()))

    def _traced_for_first(self, arg) -> _Trace:
        trace = self._latest("pack")
        leaves = jax.tree.leaves(arg, is_leaf=is_tensor)
        variables = trace.program.invars[: trace.counts[0]]
        shapes = [jnp.shape(x) for x in leaves]
        if shapes != [v.shape for v in variables]:
            raise MeshDSLError(
                "from_jax, pack: the first argument has other shapes than when it was traced; give "
                "all arguments"
            )
        return trace

    def _arguments(self, *, required: bool = False) -> list[str]:
        """The names of the positional arguments, or of those without a default."""
        kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        found = inspect.signature(self._fn).parameters.values()
        given = lambda p: p.default is not inspect.Parameter.empty
        return [p.name for p in found if p.kind in kinds and not (required and given(p))]

    def _traced(self, args) -> _Trace:
        """The trace for arguments of these shapes and dtypes, from those that are there."""
        flat, tree = jax.tree.flatten(args, is_leaf=is_tensor)
        known = self._arguments()
        arguments = [*known[: len(args)], *[str(i) for i in range(len(known), len(args))]]
        paths = [path for path, _ in paths_of(args, arguments, is_leaf=is_tensor)]
        shapes, own = [], []
        for i, (path, x) in enumerate(zip(paths, flat, strict=True)):
            shape, spec = self._shape(x, i, tree, path)
            shapes.append(shape)
            own.append(spec)
        key = tree_key(args), tuple((s.shape, s.dtype, s.weak_type) for s in shapes)
        found = self._traces.pop(key, None)
        if found is None:
            found = self._trace(args, arguments, paths, shapes, own)
        self._traces[key] = found  # the latest
        return found

    def _shape(self, x: Any, number: int, tree: Any, path: str):
        """The shape that the plain function has for a leaf, and the names of a Tensor's dims."""
        if not is_tensor(x):
            if not is_value(x) and not isinstance(x, jax.ShapeDtypeStruct):
                raise MeshDSLError(
                    f"from_jax: `{path}` is {quote(x)}; arguments are trees of arrays and Tensors"
                )
            weak = isinstance(x, (int, float, complex))
            how = jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x), weak_type=weak)
            return how, None
        sizes = {d.name: d.size for d in x.dims}
        for trace in reversed(self._traces.values()):
            of_leaf = number < len(trace.paths) and trace.paths[number] == path
            if of_leaf and trace.own[number] is None:
                v = trace.program.invars[number]
                if {d.name for d in v.flat} == set(sizes):
                    shape = [math.prod(sizes[d.name] for d in dims) for dims in v.dims]
                    return jax.ShapeDtypeStruct(shape, x.dtype), None
        names: Spec = tuple((d.name,) for d in x.dims)
        return jax.ShapeDtypeStruct(x.shape, x.dtype), names

    def _trace(self, args, arguments, paths, shapes, own) -> _Trace:
        _, tree = jax.tree.flatten(args, is_leaf=is_tensor)
        closed, result = _jaxpr(self._fn, jax.tree.unflatten(tree, shapes))
        program = flatten(closed, called)
        saving.mark(program)
        recognise(program, ops=self._recognise)
        whole = [s.shape for s in shapes]
        boxed, remarks = agreed(boxed_names(args, arguments), paths, whole)
        program.remarks.extend(remarks)
        specs = specs_of(self._names, paths, whole, arguments[0], boxed)
        inference = Inference(program, self._call)
        given = [
            (v, spec or names, f"`{path}`")
            for v, spec, names, path in zip(program.invars, specs, own, paths, strict=True)
            if spec or names
        ]
        inference.run(given, self._sizes)
        if not self._traces:
            self._check_call(inference)
        for said in describe.warnings_of(inference):
            warnings.warn(said, stacklevel=2)
        if self._recognise:
            recognise_attention(program)
        counts = [len(jax.tree.leaves(a, is_leaf=is_tensor)) for a in args]
        return _Trace(program, inference, paths, counts, tree, jax.tree.structure(result), own)

    def _check_call(self, inference: Inference) -> None:
        """That `call` has names that were made up, and gives others that were free."""
        for name, other in self._call.items():
            if name in inference.called:
                continue
            what = f"from_jax: call={{{name!r}: {other!r}}}"
            if any(d.name == name for v in inference.program.invars for d in v.flat):
                raise MeshDSLError(
                    f"{what}: `{name}` is a name that was given, and call= is for those that were "
                    "made up"
                )
            if name in inference.clashed:
                raise MeshDSLError(f"{what}: `{other}` is another dim, which stands beside it")
            raise MeshDSLError(
                f"{what}: no dim was called `{name}`{nearest(name, inference.made_up)}"
            )


def _unpacked(tree, variables: Sequence[Value], what: str):
    flat, structure = jax.tree.flatten(tree, is_leaf=is_tensor)
    if len(flat) != len(variables):
        raise MeshDSLError(
            f"from_jax, unpack: a tree of {len(flat)} leaves, and {what} has {len(variables)}"
        )
    arrays = [unpacked(x, v) for x, v in zip(flat, variables, strict=True)]
    return jax.tree.unflatten(structure, arrays)


def tree_key(args) -> Any:
    """The structure of arguments, whatever the Tensors in them are."""
    return jax.tree.structure(jax.tree.map(lambda _: 0, args, is_leaf=is_tensor))


def _jaxpr(fn: Callable, args) -> tuple[Any, Any]:
    """The jaxpr of a call at whole shapes, wherever it is asked for: without any mesh.

    Inside of a lowering JAX checks over which axes arrays vary, and would do so for the axis names
    of a `vmap`, too. A `shard_map` of its own turns that off.
    """
    found: list = []

    def trace() -> tuple:
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            found.append(jax.make_jaxpr(fn, return_shape=True)(*args))
        return ()

    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        mesh = AbstractMesh((1,), ("from_jax__whole",))
        how = {"mesh": mesh, "in_specs": (), "out_specs": (), "check_vma": False}
        jax.eval_shape(jax.shard_map(trace, **how))
    return found[0]


def from_jax(
    fn: Callable,
    names: Mapping,
    *,
    sizes: Mapping | None = None,
    call: Mapping | None = None,
    parameters: int | None = 0,
    strict: bool = False,
    recognise: bool = True,
) -> FromJax:
    """A function of arrays, written in plain JAX, as one of Tensors, to be lowered by a layout.

        named = md.from_jax(loss, {"wte": "vocab d_model", ".*c_attn": "_ (qkv heads head_dim)"})
        print(named.describe(params, tokens, targets))
        model, tokens, targets = named.pack(params, tokens, targets)
        step = md.lower(md.value_and_grad(named), md.Layout.load("fsdp"))

    Names for the dims of a few arguments are enough: those of all others follow from the code.
    What has no name is called by its size, `dim32_1`, and is split by no rule.

    Args:
      fn: takes pytrees of arrays by position, and returns one.
      names: for regular expressions over the paths of arguments a pattern of dims. The path of a
        leaf begins with the name of its argument, which may be left out for the first one. A
        pattern has a word for each position: a name, `_`, or the factors of the dim, major first.
      sizes: of names that stand in groups, where the code does not tell them apart.
      call: other names for dims that were made up, as in `{"length_2": "memory"}`.
      parameters: the number of the argument that is trained; None if there is none.
      strict: what has no rule is an error, instead of running on whole operands.
      recognise: whether softmax and attention are found in the code and become the ops of the
        language. `describe` says where.

    Raises:
      MeshDSLError: a pattern cannot be read or matches nothing. Names that contradict the code are
        found when the function is first traced.
    """
    return FromJax(
        fn,
        dict(names),
        dict(sizes or {}),
        dict(call or {}),
        parameters,
        strict=strict,
        recognise=recognise,
    )


__all__ = ["FromJax", "from_jax"]
