"""Whether there is a browser for a test, and the marks of a test that needs one."""

import os
import shutil

import pytest

__all__ = ["CHROMIUM", "needs_browser"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
REQUIRED = os.environ.get("ROLLOUTPOOL_REQUIRE_BROWSER") == "1"

needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None and not REQUIRED, reason="chromium is not installed"),
]
