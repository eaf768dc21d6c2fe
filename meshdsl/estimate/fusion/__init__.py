"""From the equations of a jaxpr to the kernels that a compiler would make of them."""
