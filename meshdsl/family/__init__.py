"""`Family`: what the tools need to know of a model.

`base` has the class and what a loss may return, `by_name` finds a family that a setting names, and
`calls` asks a family for its batch, model and loss, and checks what it answers.
"""

from meshdsl.family.base import Average, Family

__all__ = ["Average", "Family"]
