"""Finds out whether a tokenizer's chat template can be rendered exactly.

- `conformance` runs files of known cases: which ids and which mask must come out.
- `report` probes any tokenizer, and explains to a person what its template does.
"""
