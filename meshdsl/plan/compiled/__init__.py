"""Compiling for machines that are not at hand, and what the compiler made of a program."""

from meshdsl.plan.compiled.compile import compile_for
from meshdsl.plan.compiled.options import default_options, parse_options
from meshdsl.plan.compiled.report import CompiledReport
from meshdsl.plan.compiled.text import describe
from meshdsl.plan.compiled.topology import compile_only, target_devices, without_tpu

__all__ = ["CompiledReport", "compile_for", "compile_only", "default_options", "describe", "parse_options", "target_devices", "without_tpu"]
