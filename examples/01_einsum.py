"""One einsum under three layouts: what each device holds, and what moves between devices.

    python examples/01_einsum.py

A layout has rules `dim -> axis`: the dim is split over that axis of the mesh. The function names
its dims and knows no layout, and every layout gives the same numbers.
"""

import jax
import numpy as np

import meshdsl as md

LAYOUTS = {
    "the batch is split: each device has rows of x, and the whole weight": ["batch -> devices"],
    "the outputs are split: each device has columns of the weight": ["outputs -> devices"],
    "what is summed over is split: each device has a part of every sum": ["inputs -> devices"],
}

batch, inputs, outputs = md.Dim("batch", 16), md.Dim("inputs", 32), md.Dim("outputs", 64)


def product(x, weight):
    """`weight` applied to each row of `x`: what `out` does not name is summed over."""
    return md.einsum(x, weight, out=(batch, outputs))


def main():
    jax.config.update("jax_num_cpu_devices", 8)  # counts only where there is no accelerator
    x = md.random.normal(jax.random.key(0), (batch, inputs))
    weight = md.random.normal(jax.random.key(1), (inputs, outputs))
    expected = product(x, weight)  # outside of a lowering everything runs on one device

    for words, rules in LAYOUTS.items():
        layout = md.Layout(rules, mesh={"devices": "rest"})
        lowered = md.lower(product, layout)
        y = lowered(x, weight)

        print(f"{rules[0]}\n  {words}\n  result: {y}")
        moved = lowered.program(x, weight).collectives
        for c in moved:
            print(f"  moved: {c.operation} over {', '.join(c.axes)}, {c.bytes:,} bytes per device")
        if not moved:
            print("  moved: nothing")
        np.testing.assert_allclose(y.array, expected.array, rtol=1e-5, atol=1e-5)
    print("the numbers are the same under each")


if __name__ == "__main__":
    main()
