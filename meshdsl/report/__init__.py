"""What a program will do, for people: in words, as a page, and side by side with other layouts.

- `explain`: from a recorded program to an `Explanation`, with advice (`advice`) and as text
  (`explanation_text`).
- `compiled_text`: the report on a compiled step as text. `compare`: layouts side by side.
- `show`: one tensor, as text and as a picture; it is `md.show`.
- `page`: the pictures, as an HTML file and as fragments for notebooks.
"""

from meshdsl.estimate.explanation import Explanation
from meshdsl.report.explain import explain

__all__ = ["Explanation", "explain"]
