"""Models, composed from layers. No mesh, no axis, no collective in here."""

if __name__ != "meshdsl.models":  # a second copy of each class, from the root of a clone
    raise ImportError("import this package as `meshdsl.models`")
