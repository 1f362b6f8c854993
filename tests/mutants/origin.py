"""A pytest plugin that proves where our packages were imported from: from this copy, and not from the installed tree.

Without it a mistake in the runner's paths would test the tree that has no fault, and each mutant would seem to live.
"""

import sys

import pytest

STRANGE = 70
"""Exit code where a module of ours came from elsewhere, or none came at all."""
OURS = ("rolloutpool_common", "rolloutpool_api", "rolloutpool_worker", "rolloutpool_rl", "rolloutpool_trainer")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Looks at every module of ours that the tests have imported."""
    root = str(session.config.rootpath)
    found = {name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] in OURS}
    files = {name: getattr(module, "__file__", None) or "" for name, module in found.items()}
    strangers = [f"{name}: {file}" for name, file in files.items() if not file.startswith(f"{root}/")]
    if strangers or not files:
        pytest.exit(f"not imported from {root}: {strangers or 'nothing of ours was imported'}", returncode=STRANGE)
