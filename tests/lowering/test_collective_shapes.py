"""Arrays travel without dims of size 1, for which a TPU's compiler would copy them."""

import meshdsl as md
from meshdsl.program.jaxpr import body_of, sub_jaxprs
from tests.helpers import assert_same, collectives, data, dims, layout, weight, with_gradients


def test_collectives_get_no_dims_of_size_1_but_the_one_that_they_move():
    """One row on each device: forwards and backwards the arrays have two dims less, or one."""
    batch, length, d_model, heads = dims(batch=2, length=8, d_model=4, heads=4)
    rules = layout(
        "batch -> x",
        "heads -> y",
        "length -> y",
        mesh={"x": 2, "y": 4},
        parameters=["d_model -> x"],
    )
    x, w = data(batch, length, d_model), weight(d_model, heads, length)

    def fn(x, w):
        y = md.einsum(x, w, out=(batch, length, heads))
        return md.einsum(md.sin(y), w, out=x.dims)

    run = with_gradients(fn, (x, w))
    assert_same(fn, x, w, layout=rules)
    shapes = collective_shapes(md.lower(run, rules).trace(x, w).jaxpr)
    assert {"all_gather", "reduce_scatter"} <= set(shapes)
    assert all(len(shape) == 2 for each in shapes.values() for shape in each), shapes


def collective_shapes(jaxpr) -> dict[str, list[tuple[int, ...]]]:
    """The shapes of the operands of collectives that put parts together or take them apart."""
    found: dict[str, list] = {}
    for eqn in body_of(jaxpr).eqns:
        if eqn.primitive.name in ("all_gather", "reduce_scatter", "all_to_all"):
            found.setdefault(eqn.primitive.name, []).append(eqn.invars[0].aval.shape)
        for inner in sub_jaxprs(eqn.params):
            for name, shapes in collective_shapes(inner).items():
                found.setdefault(name, []).extend(shapes)
    return found


def test_what_is_gathered_without_dims_of_size_1_is_gathered_again():
    """The policy "gathers" keeps no whole parameter, whatever shape it travelled in."""
    batch, d_model, heads, head_dim = dims(batch=8, d_model=8, heads=2, head_dim=3)
    rules = layout("batch -> x", "heads -> y", mesh={"x": 4, "y": 2}, parameters=["d_model -> x"])
    x, w = data(batch, d_model), weight(d_model, heads, head_dim)

    def gathers(**how):
        layer = md.checkpoint(
            lambda x, w: md.sin(md.einsum(x, w, out=(..., heads, head_dim))), **how
        )
        loss = lambda both: md.sum(layer(*both))
        found = collectives(md.value_and_grad(loss), (x, w), layout=rules)
        return found["all_gather", ("x",)]

    assert gathers(policy="gathers") == gathers(policy="full") == 2
