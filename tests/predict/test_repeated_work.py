"""Work that comes out the same on several devices is counted, by lines of the user's code."""

import json

import jax.numpy as jnp

import meshdsl as md

ROWS, WIDTH, WIDE = md.Dim("rows", 8), md.Dim("width", 16), md.Dim("wide", 32)
MESH = {"data": 2, "model": 2}


def repeated(fn, *args, rules=("rows -> data",)):
    explanation = md.explain(fn, *args, layout=md.Layout(rules, mesh=MESH))
    return explanation, {(one.ops, one.axes): one for one in explanation.repeated}


def operands():
    x = md.tensor(jnp.ones((8, 16)), (ROWS, WIDTH))
    return x, md.tensor(jnp.ones((16, 32)), (WIDTH, WIDE))


def test_a_product_repeats_over_the_axis_that_splits_nothing_of_it():
    fn = lambda x, w: md.einsum(x, w, out=(ROWS, WIDE))
    explanation, found = repeated(fn, *operands(), rules=["rows -> data"])
    (one,) = found.values()
    assert (one.ops, one.axes, one.copies) == (("einsum",), ("model",), 2)
    assert one.flops == 2 * 4 * 16 * 32 and one.bytes == 4 * 4 * 32
    assert one.source == f"test_repeated_work.py:{fn.__code__.co_firstlineno}"
    assert one.share_of_flops == one.share_of_bytes == 1.0 and one.advice == "wide -> model"
    text = str(explanation)
    assert "done more than once: FLOPs and bytes of results that each device repeats" in text
    assert "2 times over model  4.1 kFLOP (100.00%)  512 B (100.00%)" in text
    assert json.loads(json.dumps(explanation.to_dict()))["repeated"][0]["flops"] == 4096


def test_what_a_rule_splits_is_not_repeated_and_what_a_sum_made_equal_is():
    def fn(x, w):
        h = md.einsum(x, w, out=(ROWS, WIDE))
        return md.tanh(md.sum(h, WIDE))

    _, found = repeated(fn, *operands(), rules=["rows -> data", "wide -> model"])
    ((ops, axes),) = found
    assert (ops, axes) == (("tanh",), ("model",))
    assert found[ops, axes].flops == 4


def test_a_loop_counts_for_each_turn_and_what_it_carries_differs_as_it_comes_out():
    turns = md.Dim("turns", 5)
    steps = md.tensor(jnp.ones((5,)), (turns,))

    def fn(x, w, steps):
        def body(h, step):
            return md.tanh(h) * step + x, None

        start = md.tensor(jnp.zeros((8, 16)), (ROWS, WIDTH))
        return md.scan(body, start, steps, dim=turns)[0]

    _, found = repeated(fn, *operands(), steps)
    of_body = [one for one in found.values() if "tanh" in one.ops]
    assert [one.axes for one in of_body] == [("model",)]
    assert of_body[0].flops >= 5 * 4 * 16
