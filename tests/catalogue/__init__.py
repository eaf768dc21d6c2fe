"""What is written from the code: docs/ops.md, docs/api.md, and the stubs that need no thought.

`python -m tests.catalogue` writes all of them, from what each op declares beside its function (see
`meshdsl/ops/declare.py`). Tests hold the files to what it would write.
"""
