"""`md.explain`, `md.compile`, `md.compare`, `md.search`, `md.ledger` and `md.show`.

- `function`: `md.explain` and `md.compile`. `compare`, `search`, `ledger`, `show`: each is named
  for its own.
- `analysis`: a program under one layout on one mesh, estimated or compiled. The commands of the
  command line make theirs of a step of training.
- `explanation_text`, `compiled_text`, `pipeline_text`, `ledger_text`: results as text.
- `page`: the pictures, as an HTML file and as fragments for notebooks.
"""
