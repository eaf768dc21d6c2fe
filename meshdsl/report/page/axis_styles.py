"""How a mesh axis looks: its colour, pattern and letters, the same in every picture of a page.

Colour means an axis and nothing else. Who cannot tell two colours apart has the pattern and the
letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from meshdsl.estimate.explanation import AxisView, DimView
from meshdsl.report.page.markup import Markup, join, tag

COLOURS = 6  # in base.css; further axes share them

# Strokes and dots on a tile of 8 x 8, one pattern for each colour.
_PATTERNS = (
    tag("path", d="M-2 2 2-2M0 8 8 0M6 10 10 6", class_="stroke"),
    tag("path", d="M-2 6 2 10M0 0 8 8M6-2 10 2", class_="stroke"),
    join(
        [
            tag("circle", cx="2", cy="2", r="1.3", class_="dot"),
            tag("circle", cx="6", cy="6", r="1.3", class_="dot"),
        ]
    ),
    tag("path", d="M2 0V8M6 0V8", class_="stroke"),
    tag("path", d="M0 2H8M0 6H8", class_="stroke"),
    tag("path", d="M0 0 8 8M8 0 0 8", class_="stroke"),
)


@dataclass(frozen=True)
class AxisStyles:
    """How each axis of a mesh looks.

    Attributes:
      sizes: the mesh, `{axis: size}`, in its order; the order gives the colours.
      prefix: of the ids of the patterns, to keep several pictures in one document apart.
    """

    sizes: dict[str, int]
    prefix: str = "p"

    @classmethod
    def of(cls, views: Iterable[AxisView], prefix: str = "p") -> AxisStyles:
        """Those of the axes of an explanation."""
        return cls({view.name: view.size for view in views}, prefix)

    def index(self, name: str) -> int:
        """The number of an axis' colour and pattern; the last where the mesh has no such axis."""
        return list(self.sizes).index(name) % COLOURS if name in self.sizes else COLOURS - 1

    def pieces(self, dim: DimView) -> int:
        """Into how many parts the axes split a dim."""
        return prod(self.sizes.get(axis, 1) for axis in dim.axes)

    def css(self, names: Sequence[str]) -> str:
        """The CSS classes that colour something by up to two axes; `none` without any."""
        if not names:
            return "none"
        second = f" b{self.index(names[1])}" if len(names) > 1 else ""
        return f"a{self.index(names[0])}{second}"

    def fill(self, name: str) -> str:
        """The pattern of an axis, for the attribute `fill`."""
        return f"url(#{self.prefix}-{self.index(name)})"

    def letters(self, name: str) -> str:
        """The shortest beginning of its name, at most three letters, that no other axis has."""
        others = [other.lower() for other in self.sizes if other != name]
        for n in (1, 2):
            if not any(other.startswith(name[:n].lower()) for other in others):
                return name[:n].capitalize()
        return name[:3].capitalize()

    def patterns(self) -> Markup:
        """The definitions that `fill` points to, which a document has to have once."""
        made = [
            tag(
                "pattern",
                _PATTERNS[i],
                id=f"{self.prefix}-{i}",
                class_=f"a{i}",
                width="8",
                height="8",
                patternUnits="userSpaceOnUse",
            )
            for i in sorted({self.index(name) for name in self.sizes})
        ]
        return tag(
            "svg",
            tag("title", "patterns of the axes"),
            tag("defs", made),
            class_="defs",
            width="0",
            height="0",
            aria_hidden="true",
        )

    def mark(self, name: str) -> Markup:
        """The letters of an axis on its colour."""
        return tag("b", self.letters(name), class_=f"mark {self.css((name,))}", aria_hidden="true")

    def chip(self, name: str) -> Markup:
        """The mark of an axis and its name."""
        return tag("span", self.mark(name), tag("span", name), class_=f"axis {self.css((name,))}")

    def chips(self, names: Sequence[str]) -> Markup:
        """The marks and names of several axes."""
        return join([self.chip(name) for name in names], between=" ")

    def dim(self, view: DimView) -> Markup:
        """A dim with the axes that split it, in their colours: `d_model_data`."""
        return join(
            [
                view.name,
                [tag("span", f"_{axis}", class_=f"by {self.css((axis,))}") for axis in view.axes],
            ]
        )

    def notation(self, name: str, dims: Sequence[DimView], *, bare: bool = False) -> Markup:
        """A name with dims: `einsum[batch_data, length]`.

        Args:
          bare: without dims there are no brackets.
        """
        name, bracket, rest = name.partition("[")
        breakable = join(name.replace(".", ".\0").split("\0"), between=tag("wbr"))  # after dots
        head = tag("span", breakable, class_="name")
        if bare and not dims:
            return tag("code", head, bracket + rest)
        return join([tag("code", head), self.nest(dims)])

    def nest(self, dims: Sequence[DimView]) -> Markup:
        """Dims in brackets: `[batch_data, length]`."""
        inner = join([self.dim(dim) for dim in dims], between=Markup(", <wbr>"))
        return tag("code", "[", inner, "]")
