"""Holds what we use of json beyond its documented interface, so that an upgrade breaks this file alone.

- `json.scanner.py_make_scanner`, `json.decoder.JSONObject`, `json.decoder.JSONArray`: the parser in Python, which gives
  the interpreter's lock back.
"""

import json
from json import decoder, scanner


class FairDecoder(json.JSONDecoder):
    """Reads what `json.loads` reads, with its errors."""

    def __init__(self) -> None:
        """Puts the parser in Python in the place of the one in C."""
        super().__init__()
        # The scanner in Python calls these two; the one in C has its own.
        self.parse_object = decoder.JSONObject  # type: ignore[attr-defined]
        self.parse_array = decoder.JSONArray  # type: ignore[attr-defined]
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]
