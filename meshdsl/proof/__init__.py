"""Proofs that a program for many devices computes what the model does on one.

Both programs are jaxprs. What each of their results means is written as a *term*, an expression of
the program's arguments in which the axes of the mesh are dims like any other (`terms`). A table of
lemmas says what each primitive of JAX does to terms (`lemmas`), and a few rules bring terms that
are equal into one form: sums go inwards, and what is linear is added up (`sums`). Equal terms are
one object. So the programs agree, up to the order of sums, if each result is the same object in
both. `docs/verify.md` has the theorem, and what is trusted.

`verified` says what is proved of a recorded program, and `certificate` keeps it in a file. Nothing
here knows of layouts, or of how programs are lowered.
"""

from meshdsl.proof.prove import Proof, Reference, lemmas_of, prove

__all__ = ["Proof", "Reference", "lemmas_of", "prove"]
