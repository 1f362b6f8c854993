"""Shows where each token of a result came from.

- `runs` cuts a result into runs of tokens with one origin.
- `terminal` draws them on a terminal, `html` into one file for a browser; `pages/` has its style and script.
- `server` shows a file of results (`result_file`) or a pool (`pool_relay`) in the viewer's pages.
- `file_search` searches the texts of a file, by `text_matches`.
- `sanitize` makes text of models and of the network safe to look at.
"""
