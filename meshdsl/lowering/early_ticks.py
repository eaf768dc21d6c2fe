"""The ticks of an early pipeline: a loss and its gradients, made in one loop over microbatches.

Everything here works on lists of arrays. `lowering.early` says where they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex

from meshdsl.errors import MeshDSLError
from meshdsl.lowering.collectives import zeros_of
from meshdsl.lowering.early_parts import Group, Kind, Parts
from meshdsl.lowering.linearized import Linearized, cotangents_of, floats, is_float


class Ticks:
    """The ticks as a function of all that they take, with a derivative of its own.

    The first result is the loss, and the only one that can be differentiated.

    Args:
      rest: a closed jaxpr: what follows the scan, of what that returns for one microbatch, and of
        other arrays.
      kinds: of the results of `rest`.
      count: how many of the operands are those of the scan. Those of `rest` follow.
    """

    def __init__(self, parts: Parts, rest, kinds: Sequence[Kind], count: int):
        self._of = parts, rest, kinds, count
        self._call = jax.custom_vjp(lambda *operands: _Run(*self._of, operands, ()).all()[0])
        self._call.defvjp(self._with_gradients, self._scaled, symbolic_zeros=True)

    def __call__(self, *operands) -> list:
        return self._call(*operands)

    def _with_gradients(self, *operands):
        values = [x.value for x in operands]
        wanted = [i for i, x in enumerate(operands) if x.perturbed and is_float(x.value)]
        results, gradients = _Run(*self._of, values, wanted).all()
        return results, [gradients.get(i) for i in range(len(values))]

    def _scaled(self, gradients, cotangents):
        scale = cotangents[0]
        return tuple(None if g is None else (g * scale).astype(g.dtype) for g in gradients)


class _Run:
    """One run of the ticks.

    A tick goes forward, runs the rest of the function for the microbatch that has come out, and
    goes back. There are three loops of ticks: in the first one no microbatch has come out yet, and
    in the last one none enters.

    Args:
      wanted: the numbers of the operands by which gradients are taken.
    """

    def __init__(self, parts: Parts, rest, kinds, count: int, operands, wanted):
        self._schedule, self._parts = parts.schedule, parts
        self._stage, self._rest_of, self._kinds = parts.stage(), rest, kinds
        operands, ends = list(operands), np.cumsum([len(parts.rows), *parts.counts])
        assert ends[-1] == count
        groups = zip([0, *ends], [*ends, len(operands)], strict=True)
        self._carry, self._elements, self._enter, self._closed, self._others = (
            Group(operands, int(start), int(end), wanted) for start, end in groups
        )
        self._wanted = {i: operands[i] for i in wanted}
        self._goes_back = any(i < count for i in wanted)

    def all(self) -> tuple[list, dict[int, jax.Array]]:
        """The results of the function, and the gradients of the loss by the numbers of operands."""
        schedule, state = self._schedule, self._begin()
        start, end = schedule.first_back, schedule.items + schedule.stages - 1
        numbers = lambda a, b: jnp.arange(a, b, dtype=jnp.int32)
        forward = lambda state, tick: (self._forward(state, tick)[0], ())
        state, _ = lax.scan(forward, state, numbers(0, start))
        state, results = lax.scan(self._both, state, numbers(start, end))
        if self._goes_back:
            none = [jnp.zeros_like(x) for x in floats(state["here"])]
            back = lambda state, tick: (self._back(state, none, tick), ())
            state, _ = lax.scan(back, state, numbers(end, end + start))
        return self._collected(results), self._gradients(state)

    def _begin(self) -> dict[str, Any]:
        """What a tick gets from the one before."""
        slots, zero = self._schedule.slots, jnp.zeros_like(self._stage)
        rows = self._carry.all()
        here = self._entering(zero, self._taken(rows, zero))
        self._count, kept = len(here), []
        hand = lambda _, __, carry: jex.jaxpr_as_fun(self._parts.hand)(*carry)
        self._back_handed = Linearized(hand, [], [], here).back  # it is linear, and keeps nothing
        if self._goes_back:
            of_first = [x[0] for x in self._elements.chosen], [x[0] for x in self._elements.fixed]
            both = Linearized(self._element, *self._given(*of_first, zero, zero), here)
            self._forward_element, self._back_element, kept = both.forward, both.back, both.kept
            if any("host" in str(x) for x in kept):
                raise MeshDSLError(
                    'md.checkpoint: `offload` does not go with schedule = "early" of a pipeline, '
                    "which keeps what the microbatches under way need in the memory of the device"
                )
        else:
            self._forward_element = lambda *given: (self._element(*given), [])
        each = lambda x: zeros_of(x, (slots, self._parts.chunk, *x.shape))
        results = [each(x) for x in self._parts.element.out_avals[len(here) :]]
        return {
            "rows": rows,  # of the carry; on their way back, their cotangents
            "here": here,  # what the stage before has handed on
            "kept": [each(x) for x in kept],  # for the way back, of each item under way
            "results": results,  # of this stage's elements, of each item under way
            "back": [jnp.zeros_like(x) for x in floats(here)],  # cotangents of what it handed on
            "by results": [jnp.zeros_like(x) for x in floats(results)],
            "gradients": {
                i: jnp.zeros_like(x) for i, x in self._wanted.items() if not self._in_rows(i)
            },
        }

    def _both(self, state, tick):
        state, after = self._forward(state, tick)
        state, results, by_carry = self._rest(state, after, tick)
        return (self._back(state, by_carry, tick) if self._goes_back else state), results

    def _place(self, item) -> tuple:
        """Of an item: whether it is one, the number of its microbatch, and its round."""
        schedule = self._schedule
        which, in_round = schedule.microbatch_of(item), schedule.round_of(item)
        real = (item >= 0) & (item < schedule.items) & (which < schedule.microbatches)
        which = jnp.clip(which, 0, schedule.microbatches - 1)
        return real, which, jnp.where(real, in_round, 0)

    def _in_rows(self, i: int) -> bool:
        """Whether an operand is rows of the carry, whose cotangents take their place."""
        return i < len(self._parts.rows) and self._parts.rows[i] is not None

    def _taken(self, rows, which) -> list:
        """Microbatch number `which` of the carry."""

        def taken(x, at):
            if at is None:
                return x
            size = x.shape[at] // self._schedule.microbatches
            return lax.dynamic_slice_in_dim(x, which * size, size, at)

        return [taken(x, at) for x, at in zip(rows, self._parts.rows, strict=True)]

    def _entering(self, which, rows, chosen=()) -> list:
        return jex.jaxpr_as_fun(self._parts.enter)(*self._enter.all(chosen), *rows, which)

    def _given(self, chosen, fixed, which, number) -> tuple[list, list]:
        """What an element gets beside the carry: arrays with gradients, and without.

        Args:
          chosen, fixed: those of its own.
          which, number: those of the microbatch and of the element.
        """
        closed = self._closed
        return [*closed.chosen, *chosen], [*closed.fixed, *fixed, which, number]

    def _element(self, wanted, fixed, carry) -> list:
        """The carry after an element, and its results."""
        closed, (*fixed, which, number) = self._closed, fixed
        n, m = len(closed.chosen), len(closed.fixed)
        given = closed.merged(wanted[:n], fixed[:m])
        own = self._elements.merged(wanted[n:], fixed[m:])
        return jex.jaxpr_as_fun(self._parts.element)(*given, *own, *carry, which, number)

    def _chunk(self, in_round) -> tuple[jax.Array, list, list]:
        """The places of this stage's elements of a round, and what they have of their own."""
        size = self._parts.chunk
        cut = lambda x: lax.dynamic_slice_in_dim(x, in_round * size, size)
        if self._schedule.rounds == 1:
            cut = lambda x: x
        places = jnp.arange(size, dtype=jnp.int32)
        return places, [*map(cut, self._elements.chosen)], [*map(cut, self._elements.fixed)]

    def _forward(self, state, tick) -> tuple[dict[str, Any], list]:
        """The state after this stage has gone forward, and the carry that it has computed."""
        item, n = tick - self._stage, self._count
        real, which, in_round = self._place(item)
        slot, first = self._schedule.slot(item), self._parts.first_of(in_round)
        enters = ~real | ((self._stage == 0) & (in_round == 0))
        fresh = self._entering(which, self._taken(state["rows"], which))
        given = [jnp.where(enters, a, b) for a, b in zip(fresh, state["here"], strict=True)]

        def element(state, own):
            carry, kept = state
            at, chosen, fixed = own
            given = self._given(chosen, fixed, which, first + at)
            out, new = self._forward_element(*given, carry)
            kept = [_put(all_, x, slot, at) for all_, x in zip(kept, new, strict=True)]
            return (out[:n], kept), out[n:]

        begin = given, state["kept"]
        unroll = self._parts.unroll
        (after, kept), ys = lax.scan(element, begin, self._chunk(in_round), unroll=unroll)
        results = [_put(all_, y, slot) for all_, y in zip(state["results"], ys, strict=True)]
        handed = jex.jaxpr_as_fun(self._parts.hand)(*after)
        return state | {"here": handed, "kept": kept, "results": results}, after

    def _rest(self, state, after, tick) -> tuple[dict[str, Any], list, list]:
        """What follows the scan, for the microbatch that has come out of the last stage.

        Returns:
          The state; the results of the function for this microbatch, zeros where none has come out;
          and the cotangents of the carry.
        """
        schedule = self._schedule
        item = tick - (schedule.stages - 1)
        real, which, in_round = self._place(item)
        ends = real & (in_round == schedule.rounds - 1)
        slots = schedule.slot(item + np.arange(1 - schedule.rounds, 1) * schedule.stages)
        given = [*after, *(lax.collapse(x[slots], 0, 2) for x in state["results"])]

        def run(given):
            def of(chosen, given):
                others = self._others.all(chosen)
                results = jex.jaxpr_as_fun(self._rest_of)(*given, which, *others)
                return results[0], results

            if not self._wanted:
                return of((), given)[1], [], []
            loss, pull, results = jax.vjp(of, self._others.chosen, given, has_aux=True)
            counts = self._kinds[0].is_sum | (which == 0)
            by_others, by_given = pull(jnp.where(counts, jnp.ones_like(loss), 0))
            return results, by_others, floats(by_given)

        def skip(given):
            none = lambda xs: [jnp.zeros_like(x) for x in floats(xs)] if self._wanted else []
            return [*map(zeros_of, self._rest_of.out_avals)], none(self._others.chosen), none(given)

        results, by_others, by_given = (
            run(given) if schedule.rounds == 1 else lax.cond(ends, run, skip, given)
        )
        count = len(floats(after)) if by_given else 0
        by_carry, by_results = by_given[:count], state["by results"]
        if by_given:
            put = lambda all_, new: all_.at[slots].set(
                jnp.where(ends, new.reshape(len(slots), *all_.shape[1:]), all_[slots])
            )
            by_results = [*map(put, by_results, by_given[count:])]
        gradients = self._others.added(state["gradients"], by_others)
        return state | {"gradients": gradients, "by results": by_results}, results, by_carry

    def _back(self, state, by_carry, tick) -> dict[str, Any]:
        """The state after this stage has gone back, on the item whose turn it is.

        Args:
          by_carry: the cotangents of the carry of the microbatch that has come out of the last
            stage at this tick.
        """
        schedule = self._schedule
        item = schedule.back(self._stage, tick)
        real, which, in_round = self._place(item)
        first, start = self._parts.first_of(in_round), in_round * self._parts.chunk
        # A stage that has to wait goes back on what it got first, with cotangents of zero.
        slot = jnp.where(real, schedule.slot(item), 0)
        ends = real & (self._stage == schedule.stages - 1) & (in_round == schedule.rounds - 1)
        _, by_after = self._back_handed([], [], [], state["back"])
        come = [a + jnp.where(ends, b, 0) for a, b in zip(by_after, by_carry, strict=True)]
        by_results = [jnp.where(real, x[slot], 0) for x in state["by results"]]

        def element(state, own):
            by_after, gradients = state
            (at, chosen, fixed), by_results = own
            given = self._given(chosen, fixed, which, first + at)
            kept = [x[slot, at] for x in kept_of_all]
            by_wanted, by_given = self._back_element(*given, kept, [*by_after, *by_results])
            n = len(self._closed.chosen)
            gradients = self._closed.added(gradients, by_wanted[:n])
            return (by_given, self._elements.added(gradients, by_wanted[n:], start + at)), ()

        kept_of_all, own = state["kept"], (self._chunk(in_round), by_results)
        begin, unroll = (come, state["gradients"]), self._parts.unroll
        (by_given, gradients), _ = lax.scan(element, begin, own, reverse=True, unroll=unroll)
        enters = real & (self._stage == 0) & (in_round == 0)
        state = state | {"gradients": gradients}
        if self._carry.wanted or self._enter.wanted:
            state = self._entered(state, which, enters, by_given)
        return state | {"back": [jnp.where(enters, 0, x) for x in by_given]}

    def _entered(self, state, which, enters, come) -> dict[str, Any]:
        """The state after the cotangents of a microbatch have come back to where it entered.

        Args:
          enters: whether they have, and on this stage.
          come: the cotangents.
        """
        rows, gradients = list(state["rows"]), state["gradients"]
        entering = lambda chosen, rows: self._entering(which, rows, chosen)
        taken = self._taken(rows, which)
        out, pull = jax.vjp(entering, self._enter.chosen, taken)
        come = [jnp.where(enters, x, 0) for x in come]
        by_enter, by_rows = pull(cotangents_of(out, come))
        gradients = self._enter.added(gradients, by_enter)
        for i in self._carry.wanted:
            at, new = self._parts.rows[i], by_rows[i]
            if at is None:
                gradients = gradients | {i: gradients[i] + new}
                continue
            new, start = jnp.where(enters, new, taken[i]), which * new.shape[at]
            rows[i] = lax.dynamic_update_slice_in_dim(rows[i], new, start, at)
        return state | {"gradients": gradients, "rows": rows}

    def _gradients(self, state) -> dict[int, jax.Array]:
        """The gradients by the numbers of operands: rows have entered the first stage alone."""
        rows = {i: x for i, x in enumerate(state["rows"]) if i in self._wanted and self._in_rows(i)}
        of_rows = {i: jnp.where(self._stage == 0, x, 0) for i, x in rows.items()}
        return state["gradients"] | of_rows

    def _collected(self, results) -> list:
        """The results of all microbatches, from those of each tick in the second loop."""
        schedule = self._schedule
        first = schedule.first_back - (schedule.stages - 1)
        places = np.asarray(
            [schedule.item_of(m, schedule.rounds - 1) - first for m in range(schedule.microbatches)]
        )

        def collected(x, kind: Kind):
            x = x[places] if len(places) < len(x) else x
            if kind.is_sum:
                return x.any(0) if x.dtype == bool else x.sum(0, dtype=x.dtype)
            if kind.at is None:
                return x[0]
            return lax.collapse(jnp.moveaxis(x, 0, kind.at), kind.at, kind.at + 2)

        return [collected(x, kind) for x, kind in zip(results, self._kinds, strict=True)]


def _put(array, new, *at) -> jax.Array:
    """The array with other elements at a place along its first dims."""
    start = (*at, *[0] * (array.ndim - len(at)))
    shape = *[1] * len(at), *new.shape
    return lax.dynamic_update_slice(array, new.reshape(shape), start)
