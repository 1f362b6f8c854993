"""axe-core, which looks for what keeps people from using a page. `make test-viewer` fetches it into build/viewer."""

import os
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

SCRIPT = Path(__file__).parents[2] / "build" / "viewer" / "node_modules" / "axe-core" / "axe.min.js"
REQUIRED = os.environ.get("ROLLOUTPOOL_REQUIRE_AXE") == "1"

needs_axe = pytest.mark.skipif(not SCRIPT.exists() and not REQUIRED, reason="make test-viewer fetches axe-core")


def violations(page: Page) -> list[str]:
    """What is wrong, a line each, with the element that it is wrong with."""
    # Evaluated by the driver, so the page's policy is in force for the page's own scripts all the same.
    page.evaluate(SCRIPT.read_text())
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['id']} ({violation['impact']}): {node['html'][:200]} {node['failureSummary']}"
        for violation in found["violations"]
        for node in violation["nodes"][:5]
    ]
