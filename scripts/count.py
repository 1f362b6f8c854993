"""Counts what the house weighs: `python scripts/count.py`. All lines count, also empty ones and documentation.

The kernel is what an API, a worker and a client import of ours for a plain batch: all that their entry points lead to,
also by imports within functions, but for capabilities and what only they import.
"""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = ("common", "api", "worker", "trainer", "rl")
ENTRIES = ("rolloutpool_api.__main__", "rolloutpool_worker.__main__", "rolloutpool_trainer.client")
LONG, MANY = 50, 6
"""Lines of a function, and its parameters."""


def main() -> None:
    """Prints the table."""
    product = [path for name in DISTRIBUTIONS for path in files(f"{name}/src")]
    python = [path for path in product if path.suffix == ".py"]
    functions = [node for path in python for node in ast.walk(ast.parse(path.read_text())) if is_function(node)]
    scripts = [path for path in product if path.suffix == ".lua" and not path.name.startswith("_")]
    rows = {
        "modules of the product": len(python),
        "lines of the product": lines([path for path in product if path.suffix in (".py", ".lua", ".js")]),
        "lines of the kernel": lines(kernel(product)),
        f"functions over {LONG} lines": sum((node.end_lineno or 0) - node.lineno >= LONG for node in functions),
        f"functions over {MANY} parameters": sum(parameters(node) > MANY for node in functions),
        "Lua scripts": len(scripts),
        "settings": len(settings(python)),
        "lines of tests": lines([path for path in files("tests") if path.suffix == ".py"]),
        "words of README and docs": sum(len(path.read_text().split()) for path in documents()),
    }
    for name, value in rows.items():
        print(f"{name:32} {value:8,}")


def files(folder: str) -> list[Path]:
    """The files below a folder that git knows."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.splitlines() if "swagger" not in name and (ROOT / name).exists()]


def documents() -> list[Path]:
    """README, the pages and the decisions. docs/client.md is not counted: its words are the docstrings, again."""
    pages = [path for path in (ROOT / "docs").glob("*.md") if path.name != "client.md"]
    return [ROOT / "README.md", *pages, *(ROOT / "docs" / "decisions").glob("*.md")]


def lines(paths: list[Path]) -> int:
    """All lines of some files."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def is_function(node: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Whether a node is a function or a method."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many parameters a function has, but for `self` and `cls`."""
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def kernel(product: list[Path]) -> list[Path]:
    """The modules that the entry points lead to, and the Lua."""
    product = [path for path in product if "capabilities" not in path.parts]
    modules = {module_of(path): path for path in product if path.suffix == ".py"}
    found: set[str] = set()
    ahead = list(ENTRIES)
    while ahead:
        name = ahead.pop()
        if name in found or name not in modules:
            continue
        found.add(name)
        ahead += [name.rpartition(".")[0], *imports(modules[name])]
    return [*(modules[name] for name in found), *(path for path in product if path.suffix == ".lua")]


def module_of(path: Path) -> str:
    """The dotted name of a module."""
    parts = path.relative_to(ROOT).with_suffix("").parts[2:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """What a module imports, but for its types' sake."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body.clear()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def settings(python: list[Path]) -> set[str]:
    """The fields of the settings' classes."""
    classes = (
        node for path in python for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    )
    fields = (node for one in classes if one.name.endswith("Settings") for node in one.body)
    return {
        ast.unparse(node.target)
        for node in fields
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)
    }


if __name__ == "__main__":
    main()
