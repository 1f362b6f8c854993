"""What `rolloutpool_trainer` exports, and what importing it costs."""

import ast
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rolloutpool_trainer
from rolloutpool_trainer import errors

TREE = ast.parse(Path(rolloutpool_trainer.__file__).read_text())


def test_all_is_sorted_and_complete() -> None:
    imported = {
        alias.name
        for node in ast.walk(TREE)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rolloutpool_")
        # What capabilities add is in the list of their composition.
        if node.module != "rolloutpool_trainer.composition"
        for alias in node.names
    }
    assert rolloutpool_trainer.__all__ == sorted(rolloutpool_trainer.__all__)
    assert set(rolloutpool_trainer.__all__) == imported


@pytest.mark.parametrize("name", rolloutpool_trainer.__all__)
def test_each_name_is_there_and_is_a_name_of_ours(name: str) -> None:
    value = getattr(rolloutpool_trainer, name)
    assert value.__name__ == name
    assert value.__doc__


def test_no_module_hides_a_public_name() -> None:
    """Importing a module sets it as the package's attribute, in the place of a public name that it shares."""
    modules = {module.name for module in pkgutil.iter_modules(rolloutpool_trainer.__path__)}
    assert modules.isdisjoint(rolloutpool_trainer.__all__)


def test_every_client_error_is_exported() -> None:
    for name in set(errors.__all__) - {"RolloutPoolError"}:
        assert getattr(rolloutpool_trainer, name) is getattr(errors, name)


def test_other_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rolloutpool_trainer.nothing


def python(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout


def test_clients_need_the_base_dependencies_only() -> None:
    heavy = ("starlette", "uvicorn", "orjson", "transformers", "tokenizers", "redis", "celery", "numpy", "fastapi")
    script = (
        "import sys\n"
        f"for name in {heavy}: sys.modules[name] = None\n"
        "from rolloutpool_trainer import AsyncRolloutClient, RolloutClient\n"
        "import rolloutpool_trainer.cli, rolloutpool_trainer.cli.console, rolloutpool_trainer.local.pool\n"
        "print('fine')\n"
    )
    assert python(script) == "fine\n"


@pytest.mark.parametrize(
    ("package", "name"),
    [("starlette", "callback_app"), ("numpy", "InferenceContext"), ("transformers", "MaskGenerator")],
)
def test_a_missing_package_is_named_with_the_line_that_installs_it(package: str, name: str) -> None:
    script = (
        "import sys\n"
        f"sys.modules[{package!r}] = None\n"
        "import rolloutpool_trainer\n"
        f"try: rolloutpool_trainer.{name}\n"
        "except rolloutpool_trainer.MissingExtra as error: print(error)\n"
    )
    said = python(script)
    line = re.fullmatch(rf"{name} needs {package}; in the checkout: (.+) \(docs/quickstart.md#install\)\n", said)
    assert line, said
    assert f"\n{line[1]}  # everything\n" in (Path(__file__).parents[3] / "docs" / "quickstart.md").read_text()


@pytest.mark.parametrize("package", ["cachetools", "jinja2", "tokenizers", "transformers"])
def test_a_tokenizer_without_its_extra_says_so(package: str) -> None:
    script = (
        "import pickle, sys\n"
        f"sys.modules[{package!r}] = None\n"
        "try: from rolloutpool_common.rendering import load_tokenizer\n"
        "except ImportError as error: print(type(error).__name__, pickle.loads(pickle.dumps(error)), error.name)\n"
    )
    said = f"MissingExtra a tokenizer needs {package}; in the checkout: pip .+ {package}\n"
    assert re.fullmatch(said, python(script))


def test_help_imports_nothing_slow() -> None:
    slow = ("httpx", "pydantic", "rich.live", "transformers", "rolloutpool_common.protocol")
    script = (
        "import sys\n"
        "from rolloutpool_trainer.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        f"sys.stderr.write(repr([name for name in {slow} if name in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert "mock-trainer" in done.stdout
    assert done.stderr == "[]"
