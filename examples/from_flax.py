"""A module of flax, as it is, under a layout: names for a few dims are all that it takes.

    python examples/from_flax.py

See docs/from-jax.md.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

import meshdsl as md


class Model(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x, mask = nn.Embed(64, 32, name="embed")(tokens), nn.make_causal_mask(tokens)
        for i in range(2):
            h = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=4)(h, h, mask=mask)
            x = x + nn.Dense(32)(nn.gelu(nn.Dense(128, name=f"up_{i}")(nn.LayerNorm()(x))))
        return nn.Dense(64, name="head")(nn.LayerNorm()(x))


def loss(params, tokens, targets):
    scores = jax.nn.log_softmax(Model().apply(params, tokens))
    return -jnp.mean(jnp.take_along_axis(scores, targets[..., None], -1))


NAMES = {
    "tokens|targets": "batch length",
    ".*embedding": "vocab d_model",
    ".*query/kernel": "_ heads head_dim",
    ".*up_./kernel": "_ d_ff",
    ".*head/kernel": "_ vocab",
}


def main():
    jax.config.update("jax_num_cpu_devices", 8)  # counts only where there is no accelerator
    text = jax.random.randint(jax.random.key(0), (8, 17), 0, 64)
    args = Model().init(jax.random.key(1), text[:, :-1]), text[:, :-1], text[:, 1:]
    named = md.from_jax(loss, NAMES, call={"length_2": "memory"})
    print(named.describe(*args))

    model, tokens, targets = named.pack(*args)
    step = md.lower(md.value_and_grad(named), md.Layout.load("fsdp-tensor"))
    value, gradients = step(model, tokens, targets)
    print(f"loss {value:.4f}, in plain JAX {loss(*args):.4f}")
    print(step.program(model, tokens, targets).table(all_ops=False))
    assert jax.tree.structure(named.unpack(gradients)) == jax.tree.structure(args[0])


if __name__ == "__main__":
    main()
