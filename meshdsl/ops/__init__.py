"""The ops: each states its dims and a local function; `lowering/run.py` runs them all."""
