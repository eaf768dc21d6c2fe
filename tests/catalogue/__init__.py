"""What is written from the code: docs/ops.md and docs/api.md.

`python -m tests.catalogue` writes both, from what each op declares beside its function (see
`meshdsl/ops/declare.py`). Tests hold the files to what it would write.
"""
