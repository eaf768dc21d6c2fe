"""How far off a step may be, and which layouts the estimate cannot tell apart."""

import math
from types import SimpleNamespace

import pytest

from meshdsl.predict.explanation import Estimate
from meshdsl.predict.kernels.kernels import Dot, Graph, Kernel, Loop
from meshdsl.predict.time.step_time import step_time
from meshdsl.predict.time.uncertainty import behind, close, of_difference
from tests.predict.test_time import US, Links, buffer, move, moved, work

RESIDUALS = {"product": 0.2, "pass": 0.1, "fused": 0.3, "collective": 0.5}


def estimate(kernels, **more):
    """The deviations of a step in us, on a chip with residuals."""
    links = Links()
    links.target.chip.residuals = RESIDUALS | more
    graph = Graph(kernels, [], [], axis_sizes={"data": 64})
    view = step_time(graph, SimpleNamespace(chip=links.target.chip), links, 0.0, 0.0)
    return {name: deviation / US for name, deviation in view.deviations.items()}, view


def product(flops, primitive="dot_general"):
    """As many us."""
    return Kernel(primitive, "", dots=[Dot(1, 8, 1, 1, flops, "int8")])


def test_the_same_work_is_off_by_the_same_share_in_every_turn():
    kernel = Kernel("mul", "", [buffer(8)], [], moves=moved(100))
    deviations, view = estimate([Kernel("scan", "", loop=Loop(5, [kernel, kernel])), kernel])
    assert deviations == pytest.approx({"pass mul bool 8": 110})
    assert view.estimate.uncertainty == pytest.approx(110 * US)


def test_every_kind_of_work_has_its_own_residual():
    x, y = buffer(), buffer()
    kernels = [product(10), product(8, "local_kernel"), move(40, x, y), work(10, [y])]
    deviations, view = estimate(kernels, step=0.25, layout=0.125)
    # The fused kernel takes twice as long as its FLOPs, and the device waits for 14 us.
    assert view.step == pytest.approx(50 * US)
    assert {name.split()[0]: size for name, size in deviations.items()} == pytest.approx(
        {
            "product": 0.2 * 10,
            "fused": 0.3 * 16,
            "collective": 0.5 * 14,
            "pass": 0.1 * 10,
            "step": 0.25 * 50,
            "layout": 0.125 * 50,
        }
    )


def test_a_collective_behind_compute_and_a_chip_without_residuals_leave_no_doubt():
    x, y = buffer(), buffer()
    deviations, _ = estimate([move(40, x, y), work(100), work(10, [y])])
    assert {name.split()[0] for name in deviations} == {"pass"}
    view = step_time(
        Graph([work(10)], [], []), SimpleNamespace(chip=Links().target.chip), Links(), 0.0, 0.0
    )
    assert view.deviations == {} and view.estimate.uncertainty is None


def test_what_two_layouts_share_does_not_matter_for_their_order():
    one = Estimate(1.0, {"product a": 0.3, "pass b": 0.03})
    other = Estimate(1.1, {"product a": 0.3, "pass c": 0.04})
    assert of_difference(one, other) == pytest.approx(0.05)
    assert one.uncertainty == pytest.approx(math.hypot(0.3, 0.03))


def test_what_is_not_foreseen_of_a_step_is_that_of_another_as_far_as_they_are_alike():
    def step(size, layout=0.1):
        return Estimate(1.0, {"product a": 1.0, "pass b": size, "step": 0.5, "layout": layout})

    assert of_difference(step(0.0), step(0.0)) == 0.0
    nearly, apart = of_difference(step(0.0), step(0.01)), of_difference(step(0.0), step(0.5))
    assert nearly == pytest.approx(math.hypot(0.01, 0.1 * math.sqrt(2) * 0.01 / 2.01 / 0.05))
    assert apart == pytest.approx(math.hypot(0.5, 0.1 * math.sqrt(2)))


def way(step, **deviations):
    return SimpleNamespace(step=step, estimate=Estimate(step, deviations))


def test_close_is_what_may_be_faster_and_the_likeliest_comes_first():
    best = way(1.0, a=0.1)
    likely, perhaps = way(1.05, b=0.1), way(1.05, a=0.05, b=0.03)
    surely_not, alike = way(1.05, a=0.11), way(1.0, a=0.1)
    assert close([perhaps, surely_not, alike, likely], [best]) == [likely, perhaps]
    assert close([way(1.0), SimpleNamespace(step=1.0, estimate=None)], [best, way(1.0)]) == []


def test_what_the_compiler_said_of_one_holds_of_what_has_most_in_common_with_it():
    best, like, unlike = way(1.0, a=0.1), way(1.02, a=0.1, b=0.03), way(1.05, c=0.1)
    best.step = 1.2  # the compiler's
    assert behind(like, [best]) == pytest.approx((1.22 - 0.995 * 1.2) / 0.03)
    assert behind(unlike, [best]) == pytest.approx((1.25 - 0.995 * 1.2) / math.hypot(0.1, 0.1))
    unlike.step = 1.06
    assert behind(like, [best, unlike]) == pytest.approx((1.22 - 0.995 * 1.06) / 0.03)
