"""Where each token of a result came from.

- `runs` cuts a result into runs of tokens with one origin.
- `terminal` and `html` draw them; `sanitize` makes foreign text safe to look at.
"""
