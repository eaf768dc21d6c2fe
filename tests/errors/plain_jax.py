"""Errors of plain JAX code with names."""

import jax
import jax.numpy as jnp
from jax import lax

import meshdsl as md
from tests.errors.common import MESH

W, X = jnp.ones((8, 12)), jnp.ones((4, 8))


class Lacking(md.JaxFamily):
    """A model with neither parameters nor a loss."""

    def batch(self, rows):
        return {"x": md.abstract((rows,), jnp.float32)}


class Worded(Lacking):
    """A model whose parameters are not all arrays."""

    def plain_init(self, key):
        return {"w": W, "kind": "relu"}


def described(names, fn=lambda w, x: x @ w, args=(W, X), **how):
    return md.from_jax(fn, names, **how).describe(*args)


def heads(w, x):
    return (x @ w).reshape(4, 2, 6).sum(1)


def drawn_until(w):
    """Draws for each row until one is as large as the row's first number."""
    turn = lambda carry: (jax.random.split(carry[0])[0], jax.random.uniform(carry[0]))
    row = lambda r: lax.while_loop(lambda carry: carry[1] < r[0], turn, (jax.random.key(0), 0.0))
    return jax.vmap(row)(w)[1]


def by_what_it_closes_over(w):
    """A function with a rule of its own, differentiated by a value that it closes over."""

    @jax.custom_vjp
    def scaled(x):
        return x * w

    scaled.defvjp(lambda x: (scaled(x), None), lambda _, slope: (slope,))
    return scaled(jnp.ones((8, 12)))


def differentiated(fn):
    named = md.from_jax(lambda w: fn(w).sum(), {"w": "rows columns"})
    layout = md.Layout(["rows -> data"], mesh=MESH)
    return md.lower(md.value_and_grad(named), layout)(named.pack(W))


def strict(fn, names=None, arg=W):
    named = md.from_jax(fn, names or {"w": "rows columns"}, strict=True)
    layout = md.Layout(["rows -> data"], mesh=MESH)
    return md.lower(named, layout)(named.pack(arg))


ERRORS = [
    (lambda: described({"w": 3}), 'names of `w` … "vocab d_model" … not 3'),
    (lambda: described({"w": "a (b c"}), "names of `w` … 'a (b c'"),
    (lambda: described({"w": "a 2b"}), "names of `w` … 'a 2b'"),
    (lambda: described({"w": "a"}), "`w` has the shape (8, 12) … `a` are of 1 dims"),
    (lambda: described({"ww": "a b"}), "no argument matches `ww`; did you mean `w`?"),
    (lambda: described({"(w": "a b"}), "`(w` is no regular expression"),
    (
        lambda: described({"w": "a (b c)"}, sizes={"b": 5, "c": 2}),
        "`w` has a dim of 12, which is not `b`=5 x `c`=2",
    ),
    (
        lambda: described({"w": "a bb"}, sizes={"b": 12}),
        "sizes= has `b`, which stands in no pattern; did you mean `bb`?",
    ),
    (
        lambda: described({"w": "_ (a b)"}, heads, sizes={"a": 4, "b": 3}),
        "`w` … `a`=4 x `b`=3 … `reshape` at plain_jax.py: … [2, 6] … leave them out of sizes=",
    ),
    (
        lambda: described({"w": "a b"}, call={"a": "rows"}),
        "call={'a': 'rows'}: `a` is a name that was given … made up",
    ),
    (
        lambda: described({"x": "a _"}, call={"dim12_1": "a"}),
        "call={'dim12_1': 'a'}: `a` is another dim, which stands beside it",
    ),
    (
        lambda: described({"x": "a _"}, call={"dim12_2": "memory"}),
        "call={'dim12_2': 'memory'}: no dim was called `dim12_2`; did you mean `dim12_1`?",
    ),
    (
        lambda: described({"w": "a _", "x": "a a"}, args=(W, jnp.ones((8, 8)))),
        "`x`: (a) of 8 contradicts … unique",
    ),
    (
        lambda: described({"w": "_ (a b c)"}, heads),
        "`w` has a dim of 12 that is to be (a b c) … factors [2, 6] … sizes=",
    ),
    (
        lambda: described(
            {"w": "_ (a b)", "x": "_ (a c)"}, lambda w, x: (heads(w, x), x.reshape(4, 4, 2))
        ),
        "`x`: `a` is 4 here, and 2 elsewhere",
    ),
    (
        lambda: described(
            {"w": "_ (a b)", "x": "_ (c d)"}, lambda w, x: (w + x).reshape(8, 2, 6), (W, W)
        ),
        "`x`: `c` stands where the code has `a`",
    ),
    (
        lambda: md.from_jax(lambda w, x: x @ w, {"w": "a b"}).unpack({}),
        "unpack: nothing has been traced yet … describe",
    ),
    (
        lambda: [n := md.from_jax(lambda w: w, {"w": "a b"}), n.describe(W), n.unpack([X, X])],
        "a tree of 2 leaves, and argument 0 has 1",
    ),
    (
        lambda: [n := md.from_jax(lambda w, x: x @ w, {"w": "a b"}), n.describe(W, X), n.pack(X)],
        "pack: the first argument has other shapes … give all arguments",
    ),
    (lambda: described({"w": "a b"}, args=(W, "text")), "`x` is 'text' … trees of arrays"),
    (
        lambda: strict(
            jax.random.wrap_key_data, {"key_bits_array": "rows"}, jnp.zeros(2, jnp.uint32)
        ),
        "random keys … split between devices",
    ),
    (
        lambda: strict(drawn_until),
        "a while_loop under vmap … has no random keys … split them before the loop",
    ),
    (
        lambda: differentiated(by_what_it_closes_over),
        "`scaled` at plain_jax.py: … closes over … as an argument",
    ),
    (
        lambda: differentiated(lambda w: jnp.nextafter(w, 2.0)),
        "`nextafter` at plain_jax.py: … has no derivative … Differentiation rule",
    ),
    (
        lambda: strict(lambda w: jnp.abs(jnp.fft.rfft(w, axis=0))),
        "`fft` at plain_jax.py: … whole over [rows=8] … strict=True",
    ),
    (
        lambda: described({"w": "a b"}, jax.checkpoint(heads, policy=lambda prim: True)),
        "policy of `jax.checkpoint` at plain_jax.py:32 fails for … TypeError",
    ),
    (
        lambda: described({"w": "a b"}, jax.checkpoint(heads, policy=lambda *_, **__: "yes")),
        "policy of `jax.checkpoint` at plain_jax.py:32 says 'yes' of … True, False",
    ),
    (
        lambda: strict(
            jax.shard_map(
                lambda w: lax.psum(w, "i"),
                mesh=jax.make_mesh((1,), ("i",)),
                in_specs=jax.P(),
                out_specs=jax.P(),
            )
        ),
        "`shard_map` at ? speaks of devices",
    ),
    (lambda: Lacking().init(jax.random.key(0)), "Lacking has no `plain_init`; see md.JaxFamily"),
    (lambda: Lacking().plain_loss({}, {}, None), "Lacking has no `plain_loss`"),
    (
        lambda: Worded().init(jax.random.key(0)),
        "Worded.plain_init: a model is made of arrays … `kind` is 'relu'; eqx.partition",
    ),
]
