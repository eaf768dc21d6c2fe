"""The types of `md.random`: generated as `meshdsl/_functions.pyi` is.

What is typed by hand is in `meshdsl/_random_overloads.pyi`.
"""

from collections.abc import Iterable
from typing import Any

from jax import Array

from meshdsl._random_overloads import categorical as categorical
from meshdsl._random_overloads import permutation as permutation
from meshdsl._tables import makes
from meshdsl._types import Along, T
from meshdsl.dims import Dim
from meshdsl.tensor import Tensor

def bernoulli(
    key: Any,
    probability: float | Tensor | Array,
    dims: Dim | str | Iterable[Dim | str],
    *,
    like: Tensor | None = None,
) -> Tensor: ...
@makes
def bits(
    key: Any, dims: Dim | str | Iterable[Dim | str], *, like: Tensor | None = None
) -> Tensor: ...
def dropout(x: T, rate: float, key: Any) -> T: ...
@makes
def exponential(
    key: Any, dims: Dim | str | Iterable[Dim | str], *, like: Tensor | None = None
) -> Tensor: ...
@makes
def gumbel(
    key: Any, dims: Dim | str | Iterable[Dim | str], *, like: Tensor | None = None
) -> Tensor: ...
@makes
def normal(
    key: Any, dims: Dim | str | Iterable[Dim | str], dtype: Any = ..., *, like: Tensor | None = None
) -> Tensor: ...
def permute(key: Any, x: T, dim: Along[T]) -> T: ...
@makes
def randint(
    key: Any,
    dims: Dim | str | Iterable[Dim | str],
    low: int,
    high: int,
    *,
    like: Tensor | None = None,
) -> Tensor: ...
@makes
def truncated_normal(
    key: Any,
    dims: Dim | str | Iterable[Dim | str],
    lower: float,
    upper: float,
    dtype: Any = ...,
    *,
    like: Tensor | None = None,
) -> Tensor: ...
@makes
def uniform(
    key: Any,
    dims: Dim | str | Iterable[Dim | str],
    dtype: Any = ...,
    *,
    low: Any = 0.0,
    high: Any = 1.0,
    like: Tensor | None = None,
) -> Tensor: ...
