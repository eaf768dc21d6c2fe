"""Hundreds of programs are compiled here to run once each, see tests/ops/conftest.py."""

from tests.ops.conftest import quick_compiles

__all__ = ["quick_compiles"]
