"""The golden numbers that trainer-side functions must give; see tests/golden/masks.json."""

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parents[1] / "golden" / "masks.json"
_ALL: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))

MASKS: dict[str, Any] = _ALL["seed003"]
CHOICES: dict[str, Any] = _ALL["seed004"]

CLOSE = 1e-9
