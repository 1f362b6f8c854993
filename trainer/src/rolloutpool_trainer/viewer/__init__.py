"""Shows where each token of a result came from.

- `runs` cuts a result into runs of tokens with one origin.
- `terminal` draws them on a terminal, `html` into one file for a browser; `pages/` has its style and script.
- `sanitize` makes text of models and of the network safe to look at.
"""
