"""What a program will do, for people: in words, as a page, and side by side with other layouts.

- `explained`: an explanation that prints itself (`explanation_text`) and draws itself (`page`).
- `compiled_text`: the report on a compiled step as text. `compare`: layouts side by side.
- `show`: one tensor, as text and as a picture; it is `md.show`.
- `page`: the pictures, as an HTML file and as fragments for notebooks.
"""
