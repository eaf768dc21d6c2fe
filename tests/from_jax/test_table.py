"""The table of primitives in the documentation is that of the code."""

from pathlib import Path

from jax import lax

from meshdsl.plain_jax import table
from meshdsl.plain_jax.constraints import TABLE

PAGE = Path(__file__).parents[2] / "docs" / "from-jax.md"


def test_the_page_has_the_table():
    assert table.text() in PAGE.read_text()


def test_every_primitive_that_is_spoken_of_exists():
    known = {p.name for n, p in vars(lax).items() if n.endswith("_p") and hasattr(p, "bind")}
    spoken_of = frozenset().union(*table.rows().values())
    assert len(known) > 100 and len(known & spoken_of) > 0.75 * len(known), known - spoken_of
    assert set(TABLE) - spoken_of <= {"softmax", "log_softmax", "logsumexp"}
