"""The order in which stages do their microbatches: one forward, one backward."""

from __future__ import annotations

from typing import NamedTuple


class Action(NamedTuple):
    """What one stage does with one microbatch."""

    stage: int
    microbatch: int
    backward: bool


def one_forward_one_backward(stages: int, microbatches: int) -> list[Action]:
    """All actions, each after those that it needs, and for each stage in its order.

    A stage begins with a forward pass for each stage that follows. Then forward and backward passes
    take turns, so that it keeps the inputs of no more microbatches than there are stages from it
    on (PipeDream-Flush, Narayanan et al. 2021, arXiv:2006.09503). The last stage does the forward
    and the backward pass of a microbatch at once, which is its action `backward`.
    """
    waiting = [_of_stage(s, stages, microbatches) for s in range(stages)]
    done: set[Action] = set()
    order: list[Action] = []
    while any(waiting):
        # What is possible at the same time is begun in one turn, the last stage first.
        ready = [
            actions.pop(0)
            for actions in reversed(waiting)
            if actions and done.issuperset(_needs(actions[0], stages))
        ]
        assert ready, "an order without an end"
        done.update(ready)
        order += ready
    return order


def _of_stage(stage: int, stages: int, microbatches: int) -> list[Action]:
    forward = [Action(stage, m, False) for m in range(microbatches)]
    backward = [Action(stage, m, True) for m in range(microbatches)]
    first = min(stages - 1 - stage, microbatches)
    if first == 0:  # the last stage
        return backward
    later = forward[first:]
    turns = [a for pair in zip(later, backward, strict=False) for a in pair]
    return [*forward[:first], *turns, *backward[len(later) :]]


def _needs(action: Action, stages: int) -> list[Action]:
    """What of other stages an action needs. Its own stage's order sees to the rest."""
    stage, microbatch, backward = action
    needs = []
    if backward and stage < stages - 1:
        needs.append(Action(stage + 1, microbatch, True))
    elif stage > 0:
        needs.append(Action(stage - 1, microbatch, False))
    return needs
