"""The list of faults in an answer: every reason to reject a document, each with its path in the document.

All faults are counted, and the first `MAX_LISTED` are kept. A path reads like `rollouts[3].messages[0].role`. Keys
that are not plain names are quoted as JSON, and long ones are cut.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from rolloutpool_common.protocol.errors import Fault

MAX_LISTED = 1000
LONGEST_KEY = 80
LONGEST_MESSAGE = 500

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_TEXTS = {
    "missing": "required",
    "model_type": 'must be an object; an environment or a grader is {"name": …}',
    "extra_forbidden": "unknown field; remove it, or check its spelling",
}


def path(*steps: str | int) -> str:
    """Writes steps into a document as one path."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN.fullmatch(step) and len(step) <= LONGEST_KEY:
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step[:LONGEST_KEY])}]"
    return text


class FaultList:
    """The faults of one document, or of one check of it."""

    def __init__(self) -> None:
        self.listed: list[Fault] = []
        self.total = 0

    def add(self, where: str, message: str) -> None:
        """Adds one fault; it is counted even if the list is full."""
        self.total += 1
        if len(self.listed) < MAX_LISTED:
            self.listed.append(Fault(path=where, message=message[:LONGEST_MESSAGE]))

    def extend(self, others: "FaultList") -> None:
        """Appends the faults of another list, up to 1000 in all, and adds its count."""
        self.total += others.total
        self.listed += others.listed[: MAX_LISTED - len(self.listed)]

    def add_all(self, error: ValidationError, part: Any, *, at: Sequence[str | int] = ()) -> None:
        """Adds all that pydantic found in a part of the document."""
        # Further faults are only counted: writing their texts would cost time, and nobody would read them.
        if len(self.listed) >= MAX_LISTED:
            self.total += error.error_count()
            return
        for item in error.errors(include_url=False, include_context=False, include_input=False):
            steps = _in_document(item["loc"], part, missing=item["type"] == "missing")
            text = _TEXTS.get(item["type"], item["msg"].removeprefix("Value error, "))
            self.add(path(*at, *steps), text)


def _in_document(loc: Sequence[str | int], part: Any, *, missing: bool) -> list[str | int]:
    """Keeps the steps of pydantic's location that exist in the document, and drops names of a union's members."""
    steps: list[str | int] = []
    here = part
    for position, step in enumerate(loc):
        # A required field that is missing is in the path although it is not in the document.
        last = position == len(loc) - 1
        if isinstance(step, int):
            steps.append(step)
            here = here[step] if isinstance(here, list) and step < len(here) else None
        elif isinstance(here, dict) and (step in here or (last and missing)):
            steps.append(step)
            here = here.get(step)
    return steps
