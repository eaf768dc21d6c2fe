"""A plan as pictures: `page` is one HTML file, `program_html` and `tensor_html` are fragments for notebooks."""

from meshdsl.report.page.document import page, program_html
from meshdsl.report.page.tensor import tensor_html

__all__ = ["page", "program_html", "tensor_html"]
