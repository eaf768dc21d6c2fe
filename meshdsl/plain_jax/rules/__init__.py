"""How each primitive is evaluated. Importing this package fills the table of rules."""

from meshdsl.plain_jax.rules import attention as attention
from meshdsl.plain_jax.rules import control as control
from meshdsl.plain_jax.rules import convolution as convolution
from meshdsl.plain_jax.rules import elementwise as elementwise
from meshdsl.plain_jax.rules import index as index
from meshdsl.plain_jax.rules import keys as keys
from meshdsl.plain_jax.rules import lookup as lookup
from meshdsl.plain_jax.rules import order as order
from meshdsl.plain_jax.rules import pool as pool
from meshdsl.plain_jax.rules import product as product
from meshdsl.plain_jax.rules import ragged as ragged
from meshdsl.plain_jax.rules import reduce as reduce
from meshdsl.plain_jax.rules import shape as shape
