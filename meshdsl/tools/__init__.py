"""`md.explain`, `md.compile`, `md.compare`, `md.search` and `md.show`, and how their results print.

- `analysis`: a program under one layout on one mesh, estimated or compiled (`Analysis`).
- `function`: the analysis of a function with its arguments. `from_python`: `md.explain`,
  `md.compile` and `md.compare`. `search`: `md.search`. `show`: `md.show`, one tensor.
- `explained`: an explanation that prints itself (`explanation_text`) and draws itself (`page`).
- `compiled_text`: the report on a compiled step as text.
- `side_by_side`, `compare`: layouts in a table, the best first, for `meshdsl compare` too.
- `page`: the pictures, as an HTML file and as fragments for notebooks.
"""
