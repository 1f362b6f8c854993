"""The program of docs/training.md is short and imports only what there is. `make test-trainers` runs it, with torch."""

import ast
import importlib
import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "training.md"
LONGEST = 80


def program() -> str:
    """The blocks of its section about a loop, one after the other."""
    section = PAGE.read_text().partition("\n## A training loop\n")[2].partition("\n### ")[0]
    return "\n".join(re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL))


def test_the_program_is_short() -> None:
    assert 0 < len(program().splitlines()) < LONGEST


def test_what_it_imports_from_us_is_there() -> None:
    imports = [
        node
        for node in ast.walk(ast.parse(program()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rolloutpool_")
    ]
    assert len(imports) > 5
    missing = [
        f"{node.module}.{alias.name}"
        for node in imports
        for alias in node.names
        if not hasattr(importlib.import_module(node.module or ""), alias.name)
    ]
    assert missing == []
