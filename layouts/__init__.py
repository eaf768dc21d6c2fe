"""Layout files, one for each way to run; `meshdsl layouts` lists them."""

if __name__ != "meshdsl.layouts":  # a second copy of each class, from the root of a clone
    raise ImportError("import this package as `meshdsl.layouts`")
