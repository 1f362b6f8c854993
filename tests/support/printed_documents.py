"""What commands print with `--json`, read by the schemas that are published in docs/schemas."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


def read_document(command: str, text: str, *, lines: int | None = None) -> Any:
    """Reads what a command printed, by the published schema."""
    schema = json.loads((SCHEMAS / f"{command}.json").read_text())
    validator = Draft202012Validator(schema)
    documents = [json.loads(line) for line in text.splitlines()] if lines else [json.loads(text)]
    assert len(documents) == (lines or 1)
    for document in documents:
        validator.validate(document)
        # A schema that lets anything through would prove nothing.
        assert not validator.is_valid({})
        assert not validator.is_valid([])
    # A terminal obeys no part of it.
    assert text.isascii()
    return documents[0]
