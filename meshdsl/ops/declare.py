"""`@op` declares an op beside its function; all that lists ops is made from these declarations.

    @op(
        computes="its own elements of the result; fetches those that it lacks",
        moves=("ppermute",),
        mesh_tensorflow="ShiftOperation; zeros, and sizes that divide",
        result="same",
        example=along_a(lambda shift, x, a, b: shift(x, a, 2)),
    )
    def shift(x: Tensor, dim: Dim | str, by: int, fill=0) -> Tensor:
        ...

From this one place come the public name `md.shift` and its entry in `md.__all__`, the test of the
op under random layouts, its row in docs/ops.md, which `python -m tests.catalogue` writes, and its
type in the stubs, which `stubs/make.py` writes. A file of ops has its line in `families.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from meshdsl.checked import checked
from meshdsl.dims import Dim
from meshdsl.tensor import Tensor

F = TypeVar("F", bound=Callable)


class Draw(Protocol):
    """Where an example takes its arguments from.

    Tests draw them at random; for the docs they are the same each time.
    """

    def dims(self, *names: str, low: int = 0) -> tuple[Dim, ...]:
        """Dims of drawn sizes, of at least `low`. Their names are letters that layouts split."""
        ...

    def tensor(self, *dims: Dim, low: float = -1.0, high: float = 1.0) -> Tensor:
        """Random float32 numbers between `low` and `high`, with the dims in a drawn order."""
        ...

    def integers(self, *dims: Dim, below: int) -> Tensor:
        """Random int32 numbers from 0 to `below`, with the dims in a drawn order."""
        ...

    def integer(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        ...

    def pick(self, *options: Any) -> Any:
        """One of the options."""
        ...


class Case(NamedTuple):
    """One call of an op.

    Attributes:
      fn: a function of Tensors.
      args: what to call it with.
      along: those of the dims that the op works along, as a sum does along the dims that it sums.
    """

    fn: Callable
    args: tuple
    along: tuple[Dim, ...] = ()


Example = Callable[[Callable, Draw], Case]
"""Takes the op and a `Draw`, and gives a call of the op with drawn arguments."""


class Declaration(NamedTuple):
    """What `op` was told about an op, and the op's public function.

    Attributes:
      name: the public name: `cumsum`, `random.normal`.
      function: what users call: it holds its arguments to their annotations.
      module: the module that declares the op.
      The others: see `op`.
    """

    name: str
    function: Callable
    module: str
    computes: str
    example: Example
    moves: tuple[str, ...]
    mesh_tensorflow: str
    result: str
    gradients: bool
    floats: bool

    def case(self, draw: Draw) -> Case:
        """A call of the op with drawn arguments."""
        return self.example(self.function, draw)


DECLARED: list[Declaration] = []
"""All ops. One that has several rows in docs/ops.md is here several times."""


def op(
    *,
    computes: str,
    example: Example,
    moves: tuple[str, ...] = (),
    mesh_tensorflow: str = "",
    result: str = "",
    gradients: bool = True,
    floats: bool = False,
    names: tuple[str, ...] = (),
    module: str | None = None,
    held: bool = False,
) -> Callable[[F], F]:
    """Declare the function that follows as a public op. The function itself stays as it is.

    Args:
      computes: what each device computes, for docs/ops.md.
      example: makes a call of the op with drawn arguments.
      moves: the collectives that the op itself may run forward when a dim that it works along is
        split. Those that the law runs to bring operands and results where they belong are not
        meant.
      mesh_tensorflow: the class of Mesh-TensorFlow that does the same, and after a semicolon what
        that forbids or lacks.
      result: how the op is typed. "same": the result has the dims of the first operand. A name of
        `stubs/declarations.pyi` ("reduces", "removes", "makes"): the overloads of its rows. "": as
        the function is annotated, or by rows of the name of the op.
      gradients: whether the example has gradients worth comparing.
      floats: whether the op takes real floating-point numbers only.
      names: the public names, where they differ from the function's; `random.x` is `md.random.x`.
      module: the module that declares the op, where the function is of another one.
      held: the function is held to its annotations already.
    """

    def declare(fn: F) -> F:
        public = fn if held else checked(fn)
        for name in names or (fn.__name__,):
            DECLARED.append(
                Declaration(
                    name=name,
                    function=public,
                    module=module or fn.__module__,
                    computes=computes,
                    example=example,
                    moves=moves,
                    mesh_tensorflow=mesh_tensorflow,
                    result=result,
                    gradients=gradients,
                    floats=floats,
                )
            )
        return fn

    return declare


def of_x(call: Callable = lambda fn, x: fn(x)) -> Example:
    """The example `call(op, x)`, with `x` of two dims. The op works along none of them."""

    def example(fn: Callable, draw: Draw) -> Case:
        return Case(lambda x: call(fn, x), (draw.tensor(*draw.dims("a", "b")),))

    return example


def along_a(
    call: Callable = lambda fn, x, a, b: fn(x, a), drawn: Callable = lambda draw, a: ()
) -> Example:
    """The example `call(op, x, a, b, *drawn(draw, a))`, with `x` of the dims `a` and `b`.

    The op works along `a`.
    """

    def example(fn: Callable, draw: Draw) -> Case:
        a, b = draw.dims("a", "b")
        more = drawn(draw, a)
        return Case(lambda x: call(fn, x, a, b, *more), (draw.tensor(a, b),), (a,))

    return example
