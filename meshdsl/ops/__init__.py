"""The ops: each states its dims and a local function; `lowering/loop.py` runs them all."""
