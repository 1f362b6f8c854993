"""Functions and classes out of released wheels, without importing their modules.

Trainers for GPU machines import vLLM, Ray and CUDA at their first line, so their checks can't be imported here. But
the checks themselves need torch at most. `taken` reads the module's source from the wheel, takes the named definitions
out of it, and runs these alone.
"""

import __future__

import ast
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SOURCES = Path(__file__).parents[2] / "build" / "trainers" / "sources"
"""Where `make test-trainers` puts the wheels."""


def taken(distribution: str, module: str, *names: str, later: bool = True, **known: Any) -> SimpleNamespace:
    """Takes definitions out of a module.

    Args:
        distribution: The beginning of the wheel's file name.
        module: Path of the module in the wheel.
        *names: Of functions and classes, or `Class.method`, which becomes a function.
        later: Whether annotations are left as text, so that what they name need not be known.
        **known: What the definitions use.

    Raises:
        LookupError: The module has no such definition any more.
    """
    (wheel,) = SOURCES.glob(f"{distribution}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name == module or name.endswith(f"/purelib/{module}"))
        tree = ast.parse(archive.read(path))
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}": part for part in node.body if isinstance(part, FUNCTIONS)}
    if missing := set(names) - set(found):
        raise LookupError(f"{wheel.name} has no {sorted(missing)} in {module}")
    program = ast.Module([found[name] for name in names], [])
    flags = __future__.annotations.compiler_flag if later else 0
    space = dict(known)
    exec(compile(program, f"{wheel.name}/{path}", "exec", flags=flags, dont_inherit=True), space)
    return SimpleNamespace(**{name.rpartition(".")[2]: space[name.rpartition(".")[2]] for name in names})
