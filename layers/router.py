"""The router of a mixture of experts: which experts each token uses, and with which weights."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from flax.struct import PyTreeNode

import meshdsl as md

SCORES = ("softmax", "sigmoid")
_STEP = 1e-3  # how far offsets that balance the load move in a step, as in DeepSeek-V3


class Choice(PyTreeNode):
    """The experts that a router has chosen for each token.

    Attributes:
      experts: the numbers of the experts, the best first; the dims of the tokens, and `top`.
      weights: the weights of the experts' results; the same dims.
      scores: the scores of all experts; the dims of the tokens, and `routes`.
      logits: the logits from which the scores were computed; the same dims.
    """

    experts: md.Tensor
    weights: md.Tensor
    scores: md.Tensor
    logits: md.Tensor


class Router(PyTreeNode):
    """Scores for each token and expert, and the `top` experts of each token.

    It computes in float32. Its dim of experts is called `routes`: a rule of a layout for `experts`
    is about their weights, and a router is too small to be split.

    Attributes:
      weight: dims d_model and routes.
      bias: added to the logits; the dim routes. None for none, as in most models.
      offset: added to the scores by which experts are chosen, and not to those that become weights
        (DeepSeek-V3); the dim routes. None for none. The loss does not depend on it: by `settling`
        of `Load` its gradient is the difference between the load of an expert and the mean load,
        and an optimizer of `meshdsl train` moves it a small step against the sign of this
        gradient, once per step.
      top: how many experts a token has.
      scores: how logits become scores: by a `softmax` over all experts, or a `sigmoid` for each.
      normalise: whether the weights of a token are divided by their sum.
      scale: a factor of the weights.
      groups: into how many groups the experts are divided.
      groups_used: how many groups a token uses; 0: all. It uses the groups whose best expert, with
        `softmax`, or whose two best experts together, with `sigmoid`, have the highest scores.
    """

    weight: md.Tensor
    bias: md.Tensor | None
    offset: md.Tensor | None
    top: int = struct.field(pytree_node=False)
    scores: str = struct.field(pytree_node=False, default="softmax")
    normalise: bool = struct.field(pytree_node=False, default=True)
    scale: float = struct.field(pytree_node=False, default=1.0)
    groups: int = struct.field(pytree_node=False, default=1)
    groups_used: int = struct.field(pytree_node=False, default=0)

    @classmethod
    def init(
        cls,
        key,
        d_model: md.Dim,
        experts: int,
        top: int,
        *,
        biased: bool = False,
        offset: bool = False,
        scores: str = "softmax",
        normalise: bool = True,
        scale: float = 1.0,
        groups: int = 1,
        groups_used: int = 0,
    ):
        """Normal weights, and offsets and biases of zero.

        Raises:
          MeshDSLError: there are fewer experts than `top`, also in the groups that are used; they
            do not divide into the groups; or there are no such scores.
        """
        routes = md.Dim("routes", experts)
        if scores not in SCORES:
            raise md.MeshDSLError(f"Router: scores are one of {', '.join(SCORES)}, not {scores!r}")
        if not 1 <= top <= experts:
            raise md.MeshDSLError(f"Router: {top} of {experts} experts; a token has 1 or more")
        if groups < 1 or experts % groups or not 0 <= groups_used <= groups:
            raise md.MeshDSLError(
                f"Router: {experts} experts do not divide into {groups} groups, of which "
                f"{groups_used} are used"
            )
        if groups_used and top > experts // groups * groups_used:
            raise md.MeshDSLError(
                f"Router: {top} experts for each token, and {groups_used} groups have "
                f"{experts // groups * groups_used}"
            )
        return cls(
            weight=md.normal(key, (d_model, routes), ins=d_model),
            bias=md.zeros(routes) if biased else None,
            offset=moved_by_sign(md.zeros(routes)) if offset else None,
            top=top,
            scores=scores,
            normalise=normalise,
            scale=scale,
            groups=groups,
            groups_used=groups_used,
        )

    def __call__(self, x: md.Tensor) -> Choice:
        """The experts of each token of `x`, which has d_model and any other dims."""
        routes, wide = self.weight.dims[-1], lambda t: md.cast(t, jnp.float32)
        logits = md.dot(wide(x), wide(self.weight))
        if self.bias is not None:
            logits = logits + wide(self.bias)
        scores = md.sigmoid(logits) if self.scores == "sigmoid" else md.softmax(logits, routes)
        choosing = md.stop_gradient(scores)
        if self.offset is not None:
            choosing = choosing + md.stop_gradient(wide(self.offset))
        if 0 < self.groups_used < self.groups:
            choosing = md.where(self._usable(choosing, routes), choosing, -jnp.inf)
        _, chosen = md.top_k(choosing, routes, md.Dim("top", self.top))
        # A lookup would be differentiated to a scatter, which costs more than a sum over routes.
        weights = md.sum(md.where(md.one_hot(chosen, routes, bool), scores, 0.0), routes)
        if self.normalise:
            weights = weights / (md.sum(weights, "top") + 1e-20)
        return Choice(chosen, weights * self.scale, scores, logits)

    def _usable(self, scores: md.Tensor, routes: md.Dim) -> md.Tensor:
        """Whether an expert is in one of the groups that a token uses."""
        groups = md.Dim("route_groups", self.groups)
        members = md.Dim("group_routes", routes.size // self.groups)
        apart = md.reshape(scores, tuple(e for d in scores.dims for e in self._apart(d, groups)))
        best = 2 if self.scores == "sigmoid" and members.size > 1 else 1
        of_groups = md.sum(md.top_k(apart, members, md.Dim("best", best))[0], "best")
        _, used = md.top_k(of_groups, groups, md.Dim("used", self.groups_used))
        usable = md.any(md.one_hot(used, groups, bool), "used")
        return md.reshape(md.broadcast(usable, (*usable.dims, members)), scores.dims)

    def _apart(self, d: md.Dim, groups: md.Dim) -> tuple[md.Dim, ...]:
        if d.name != "routes":
            return (d,)
        return groups, md.Dim("group_routes", d.size // self.groups)


def moved_by_sign(offset: md.Tensor) -> md.Tensor:
    """`offset` as a parameter that moves by a small step against the sign of its gradient."""
    assert offset.role is not None
    return offset.replace(role=offset.role._replace(signs=_STEP))
