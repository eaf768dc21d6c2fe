"""Proofs that a program for many devices computes what the model does on one.

Both programs are jaxprs. What each of their results means is written as a *term*, an expression of
the program's arguments in which the axes of the mesh are dims like any other (`terms`). A table of
lemmas says what each primitive of JAX does to terms (`lemmas`), and rules bring terms that are
equal into one form: sums go inwards, and what is linear is added up (`forms.sums`). Equal terms are
one object. So the programs agree, up to the order of sums, if each result is the same object in
both. `docs/verify.md` has the theorem, and what is trusted.

| what | where |
| --- | --- |
| the representation | `terms`, `labels`, `values` |
| the comparison | `walk` goes through a program, `prove` compares two |
| lemmas, by primitive | `elements`, `along`, `places`, `moves`, `reductions`, `indexing`, `loops`,
  `conditions`, and `sorting`, for experts |
| one form | `forms/`: of sums, of casts between floats, of products with exponentials, of rows of
  tables, of what conditions choose, of what is padded, of windows, of the largest of parts, and of
  rows that are sorted |
| what devices send each other | `sends/`: parts that go round (`rings`), also of rows in another
  order (`orders`, with sums of such rows in `forms/orders`) or in loops of which each round is
  looked at alone (`turns`), edges of neighbours (`edges`), or elements, one by one (`ticks` and
  `passed`, by `followed`, `routes` and `alone`) |
| what a user sees | `verified`, `certificate`; `counterexample`, by numbers (`simulated`) |

Nothing here knows of layouts, or of how programs are lowered.
"""

from meshdsl.proof.prove import Proof, Reference, lemmas_of, prove

__all__ = ["Proof", "Reference", "lemmas_of", "prove"]
