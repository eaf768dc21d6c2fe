"""checkpoint: which values are kept for the backward pass, and which it computes again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import ad_checkpoint, lax

from meshdsl import dims as dim_algebra
from meshdsl.errors import MeshDSLError, nearest, quote
from meshdsl.lowering import derivatives, resharding
from meshdsl.lowering.carried import carried, carrying, uncarried
from meshdsl.ops.attention.operands import SAVED as ATTENTION
from meshdsl.ops.bodies import arrays_in, scope_of
from meshdsl.ops.declare import of_x, op
from meshdsl.ops.functions import FUNCTIONS
from meshdsl.tensor import Tensor


class Policy(NamedTuple):
    """Which values are kept for the backward pass, beside the arguments of the function.

    Attributes:
      says: a description of these values.
      keeps: the names of the save points that are kept. A function need not mark all of them.
      rule: whether the results of a primitive are kept too, a function as in
        `jax.checkpoint_policies`; None if only save points are.
    """

    says: str
    keeps: tuple[str, ...] = ()
    rule: Callable[..., bool] | None = None


# The save points of layers, beside that of `attention`: the operands of attention; and the results
# of the first matrices of a feed-forward layer, or of the convolutions of a block.
QKV, HIDDEN = "qkv", "hidden"

# Each policy keeps more than the one before it. None of them keeps results of gathers from other
# devices, because then each device would hold whole parameters for the backward pass.
POLICIES = {
    "full": Policy("nothing"),
    "attention": Policy("the output of attention and its log-sum-exp", (ATTENTION,)),
    "qkv": Policy("these, and the queries, keys and values", (ATTENTION, QKV)),
    "hidden": Policy(
        "these, and the products that the feed-forward layer begins with",
        (ATTENTION, QKV, HIDDEN),
    ),
    "dots": Policy(
        "these, and all other matrix products",
        (ATTENTION, QKV, HIDDEN),
        jax.checkpoint_policies.checkpoint_dots,
    ),
    "gathers": Policy(
        "everything but what was gathered from other devices",
        (ATTENTION, QKV, HIDDEN),
        # A `linear_call` may be a gather and a cast. A `reshape` may add the dims of size 1 that
        # were left out of a gather. `pvary` and `pcast` only change the type of an array.
        lambda prim, *_, **__: (
            prim.name not in ("all_gather", "linear_call", "reshape", "pvary", "pcast")
        ),
    ),
}
# For each checkpoint that is being traced, the names of the save points within it so far.
_marked: ContextVar[tuple[set[str], ...]] = ContextVar("marked", default=())


def _checkpoint_example(checkpoint: Callable, x: Tensor) -> Tensor:
    return checkpoint(lambda x: FUNCTIONS["sin"](FUNCTIONS["tanh"](x)))(x)


@op(
    computes="the function, again in the backward pass",
    mesh_tensorflow="CustomGradientOperation (`recompute_grad`); everything or nothing",
    example=of_x(_checkpoint_example),
)
def checkpoint(
    fn: Callable,
    policy: str = "full",
    *,
    save: str | Iterable[str] = (),
    offload: str | Iterable[str] = (),
    in_scan: bool = False,
) -> Callable:
    """`fn`, recomputed in the backward pass instead of remembered.

    Args:
      policy: what is kept for the backward pass beside the arguments. "full": nothing. "attention":
        the output of `attention` and its log-sum-exp. "qkv": these, and what the layers mark as
        "qkv", queries, keys and values. "hidden": these, and what the layers mark as "hidden", the
        products that a feed-forward layer begins with. "dots": these, and all other matrix
        products. "gathers": everything but what was gathered from other devices, so that no device
        keeps whole parameters. Functions of your own may mark "qkv" and "hidden" too.
      save: names of save points (see `checkpoint_name`) that are kept whatever the policy says.
      offload: names of save points that are kept in the memory of the host (`pinned_host`), and
        fetched when they are needed.
      in_scan: whether `fn` is the body of a `scan`, of a carry and an element, whose gradient is
        taken outside of it. The forward and the backward pass are loops of their own then, and no
        compiler takes what one has computed for what the other computes again. Without that care
        what is kept is read where it lies, and not copied first; but in one loop nothing would be
        recomputed.

    Raises:
      MeshDSLError: there is no such policy, a name is in both lists, or `fn` marks no save point
        with that name.
    """
    if policy not in POLICIES:
        raise MeshDSLError(f"checkpoint: no policy {quote(policy)}{nearest(str(policy), POLICIES)}")
    save, offload = (dim_algebra.listed(names) for names in (save, offload))
    for name in (*save, *offload):
        if not isinstance(name, str):
            raise MeshDSLError(
                "checkpoint: save points are called by names, see checkpoint_name, not "
                f"{quote(name)}"
            )
    if both := set(save) & set(offload):
        raise MeshDSLError(
            f"checkpoint: `{min(both)}` is to be saved and to be offloaded; name it once"
        )
    known: set[str] = set()

    def marking(*args):
        found: set[str] = set()
        token = _marked.set((*_marked.get(), found))
        try:
            out = arrays_in("checkpoint", "result", fn(*args))
        finally:
            _marked.reset(token)
        for name in (*save, *offload):
            if name not in found:
                hint = nearest(name, found) or "; it marks none, see checkpoint_name"
                raise MeshDSLError(f"checkpoint: the function marks no save point `{name}`{hint}")
        known.update(found)
        return out

    def checkpointed(*args):
        scope_of("checkpoint", arrays_in("checkpoint", "argument", args))
        # Another function for each call: otherwise JAX would trace calls that are alike only once,
        # and their ops would be recorded once.
        keeps = _policy(policy, save, offload)
        if (found := _policies.get()) is not None:
            found.append(keeps)
        recomputed = derivatives.checkpoint(carrying(marking), keeps, in_scan=in_scan)
        out = uncarried(recomputed(*carried(args)))
        for names in _marked.get():
            names |= known
        return out

    return checkpointed


def _checkpoint_name_example(checkpoint_name: Callable, x: Tensor) -> Tensor:
    named = lambda x: FUNCTIONS["sin"](checkpoint_name(FUNCTIONS["tanh"](x), "y"))
    return checkpoint(named, save="y")(x)


@op(
    computes="nothing",
    example=of_x(_checkpoint_name_example),
    result="same",
)
def checkpoint_name(x: Tensor, name: str) -> Tensor:
    """`x`, as a save point of that name, which a `checkpoint` around it can keep.

    A sum that `x` waits for is taken, so that what is kept is the sum.
    """
    x = resharding.take_sums(x)
    mark(name)
    marked = lambda array: ad_checkpoint.checkpoint_name(array, name)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):  # JAX cannot keep complex numbers
        array = lax.complex(marked(x.array.real), marked(x.array.imag))
        return Tensor(array, x.dims, x.role, x.placement)
    return Tensor(marked(x.array), x.dims, x.role, x.placement)


_policies: ContextVar[list | None] = ContextVar("policies", default=None)


@contextmanager
def policies_within(found: list):
    """Inside of the `with`, the policy of each recomputed function is added to `found`."""
    token = _policies.set(found)
    try:
        yield
    finally:
        _policies.reset(token)


def mark(name: str) -> None:
    """Tell the checkpoints that are being traced that they have a save point of this name."""
    for names in _marked.get():
        names.add(name)


def _policy(policy: str, save, offload):
    """The policy for `jax.checkpoint`: which results to keep; None for none."""
    _, keeps, rule = POLICIES[policy]
    kept = tuple(name for name in dict.fromkeys((*keeps, *save)) if name not in offload)
    if not kept and not offload:
        return rule
    by_name = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=kept,
        names_which_can_be_offloaded=offload,
        offload_src="device",
        offload_dst="pinned_host",
    )

    def decide(primitive, *avals, **params):
        if params.get("name") in (*kept, *offload) and primitive.name == "name":
            return by_name(primitive, *avals, **params)
        return rule is not None and rule(primitive, *avals, **params)

    return decide
