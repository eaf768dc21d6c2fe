"""Plain JAX code under a layout: names for a few dims, the rest inferred, the law for all of it.

A function of arrays is traced to a jaxpr (`program`). Constraints by primitive (`constraints`) say
which dims are the same (`factors`, `inference`), beginning with the names that the user gives
(`names`). Then the program is evaluated with the ops of the language (`evaluate`, `rules`), whose
loop nests the rules of the layout split. What has no rule runs on whole operands (`fallback`), and
is listed (`describe`).
"""

from meshdsl.plain_jax.family import JaxFamily
from meshdsl.plain_jax.public import FromJax, from_jax

__all__ = ["FromJax", "JaxFamily", "from_jax"]
