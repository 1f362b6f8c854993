"""An oracle of tokens: what new messages must add behind a sampled turn, computed the expensive way.

- `encoder` makes ids of text that continues other text; `spelling` keeps typed control strings apart.
- `referee` renders the real conversation with transformers and cuts it behind the turn: ids, a refusal, or no oracle.
- `ends` knows how turns end, per family; `endings` are the ways in which a policy ends one.
- `conversations` draws conversations from a seed; `sets` lays out the templates; `renderers` is what is under test.
- `python -m tests.oracle` plays many and counts.

Only `renderers` imports anything of the rooms under test, and only when it is asked for today's renderer.
"""
