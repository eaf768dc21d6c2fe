"""From a function of Tensors to what it will do on a machine: explained, compiled, compared.

- `analysis`: a program under one layout on one mesh, estimated or compiled (`Analysis`).
- `function`: the analysis of a function with its arguments.
- `side_by_side`: layouts in a table, the best first; `meshdsl compare` makes its table by it too.
- `from_python`: `md.explain`, `md.compile` and `md.compare`.
"""
