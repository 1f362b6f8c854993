"""The maths needs numpy and common: no trainer, no pool, and tokenizers only where messages are rendered."""

import pkgutil
import subprocess
import sys

import rolloutpool_rl

RENDERING = {"choice_conversation", "choice_groups", "inference_context", "openai_choices", "role_masks", "role_spans"}
"""Modules that need the extra `rendering`."""
OTHERS = (
    *("rolloutpool_trainer", "rolloutpool_worker", "rolloutpool_api", "rolloutpool_common.store"),
    *("redis", "celery", "httpx", "fastapi", "starlette", "torch"),
)
TOKENIZERS = ("transformers", "tokenizers", "rolloutpool_common.rendering")
MODULES = {module.name for module in pkgutil.iter_modules(rolloutpool_rl.__path__)}


def importing(modules: set[str], blocked: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Imports the modules in a process in which the blocked ones cannot be imported."""
    script = "import importlib, sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in blocked)
    script += "".join(f"importlib.import_module('rolloutpool_rl.{name}')\n" for name in sorted(modules))
    return python(script)


def python(script: str) -> subprocess.CompletedProcess[str]:
    """Runs it in a process of its own."""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_arrays_and_results_need_numpy_only() -> None:
    run = importing(MODULES - RENDERING, (*OTHERS, *TOKENIZERS))
    assert run.returncode == 0, run.stderr


def test_rendering_needs_no_pool_and_no_trainer() -> None:
    run = importing(RENDERING, OTHERS)
    assert run.returncode == 0, run.stderr


def test_what_is_said_to_need_the_extra_needs_it() -> None:
    script = "".join(f"sys.modules[{name!r}] = None\n" for name in TOKENIZERS)
    for name in sorted(RENDERING):
        script += f"try: importlib.import_module('rolloutpool_rl.{name}')\n"
        script += f"except ImportError as error: assert 'rolloutpool_common.rendering' in str(error), {name!r}\n"
        script += f"else: raise AssertionError({name!r})\n"
    run = python("import importlib, sys\n" + script)
    assert run.returncode == 0, run.stderr


def test_each_module_is_introduced() -> None:
    assert [name for name in MODULES if f"`{name}`" not in (rolloutpool_rl.__doc__ or "")] == []
