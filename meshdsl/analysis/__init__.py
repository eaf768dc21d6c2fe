"""From a function of Tensors to what it will do on a machine: explained, compiled, compared.

- `function`: a function with its arguments under one layout on one mesh (`FunctionAnalysis`).
- `machine`: the mesh of a layout on a target, and this machine as a target.
- `side_by_side`: layouts in a table, the best first; `meshdsl compare` makes its table by it too.
- `from_python`: `md.explain`, `md.compile` and `md.compare`.
"""
