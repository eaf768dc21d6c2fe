"""Layout files, one for each way to run; `meshdsl layouts` lists them."""
