"""docs/ops.md, which `python -m tests.catalogue` writes from what each op declares.

The page stays in the repository: what an op moves is a promise, and a change shows in its rows.
"""
