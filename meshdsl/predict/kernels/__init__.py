"""From the equations of a jaxpr to the kernels that a compiler makes of them."""
