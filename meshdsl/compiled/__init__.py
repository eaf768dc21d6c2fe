"""Compiling for machines that are not at hand, and what the compiler made of a program."""
