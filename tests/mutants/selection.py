"""Which tests are run against a mutant whose entry names none: those that import its module, its own tests first.

A script in Lua has no importers; there the modules that call it stand for it. What every script begins with is called
by none of them by name, so a mutant of it has to name its tests.
"""

import ast
import re
from functools import cache
from pathlib import Path

from tests.mutants.mutant import ROOT, Mutant

FOLDERS = ("tests/unit", "tests/property", "tests/integration/store")
ELSEWHERE = {"worker/rollout/ticket": "unit/worker/rollout/test_attempt"}
"""Modules whose own tests are in the test module of another one."""


def selected_tests(mutant: Mutant) -> list[str]:
    """Returns the test modules of a mutant, as paths from the root."""
    if mutant.tests:
        return list(mutant.tests)
    modules = [mutant.file] if mutant.file.suffix == ".py" else _callers(mutant.file)
    own = [path for module in modules if (ROOT / (path := _own_tests(module))).exists()]
    names = {_module_name(module) for module in modules}
    return list(dict.fromkeys([*own, *(test for test, imports in _imports().items() if imports & names)]))


def _own_tests(module: Path) -> str:
    """The test module that has its name, as far as there is one."""
    distribution, package = module.parts[0], Path(*module.parts[3:]).with_suffix("")
    name = f"{distribution}/{package}"
    if name in ELSEWHERE:
        return f"tests/{ELSEWHERE[name]}.py"
    return f"tests/unit/{distribution}/{package.with_name(f'test_{package.name}')}.py"


def _callers(script: Path) -> list[Path]:
    store = script.parents[1]
    call = re.compile(rf'script\(\s*"{script.stem}"')
    return [store / path.name for path in sorted((ROOT / store).glob("*.py")) if call.search(path.read_text())]


def _module_name(module: Path) -> str:
    return ".".join(module.with_suffix("").parts[2:])


@cache
def _imports() -> dict[str, set[str]]:
    """What each test module imports: modules, and names in them, which may be modules too."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("test_*.py")):
            names: set[str] = set()
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module:
                    names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                elif isinstance(node, ast.Import):
                    names |= {alias.name for alias in node.names}
            found[str(path.relative_to(ROOT))] = names
    return found
