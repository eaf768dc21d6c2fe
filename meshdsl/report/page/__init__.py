"""What a program does, as pictures.

`page` is one HTML file with everything (`document`); `program_html` and `tensor_html` are fragments
for notebooks. The sections of the page are drawn by modules that are named for what they show:
`header`, `mesh`, `tables`, `flow`, `timeline`, `memory` and `tensors`. `axis_styles` says how an
axis looks in all of them, and `markup` writes HTML and SVG.
"""

from meshdsl.report.page.document import page, program_html
from meshdsl.report.page.tensor import tensor_html

__all__ = ["page", "program_html", "tensor_html"]
