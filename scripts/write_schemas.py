"""Writes docs/schemas, the JSON schema of what each command prints with `--json`: `make generate`.

`tests/unit/trainer/cli/test_documents.py` says where a file is not current.
"""

import json
from pathlib import Path

from rolloutpool_trainer.cli import tokenizer_report
from rolloutpool_trainer.cli.documents import json_schemas

SCHEMAS = Path(__file__).parents[1] / "docs" / "schemas"


def main() -> None:
    """Write all files."""
    for name, schema in {**json_schemas(), "check-tokenizer": tokenizer_report.json_schema()}.items():
        (SCHEMAS / f"{name}.json").write_text(json.dumps(schema, indent=2) + "\n")


if __name__ == "__main__":
    main()
