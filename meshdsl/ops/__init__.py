"""The ops: each states its dims and a local function; `lowering/law.py` runs them all."""
