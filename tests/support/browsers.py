"""Whether there is a browser for a test, the marks of a test that needs one, and one browser for tests in a row."""

import os
import shutil
import time
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
REQUIRED = os.environ.get("ROLLOUTPOOL_REQUIRE_BROWSER") == "1"
PATIENCE_MS = 30_000
"""What is slow here is the machine."""

needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None and not REQUIRED, reason="chromium is not installed"),
]


def wait_until(page: Page, expression: str) -> None:
    """Waits until a JavaScript expression is true.

    An address is true before its view is drawn: the browser changes it first. So what the view shows has to be awaited
    too, by `expect`.

    Playwright's own `wait_for_function` asks again by `eval` inside the page, which the page's strict policy forbids.
    """
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"not true within {PATIENCE_MS} ms: {expression}"
        page.wait_for_timeout(20)


class SharedBrowser:
    """Chromium, started when a test first asks for it.

    As long as Playwright's driver runs, no test can run an event loop of its own. So it must be closed before the next
    test that needs no browser.
    """

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._browser: Browser | None = None

    def get(self) -> Browser:
        """Chromium without its sandbox, which a container has no rights for. It finds no host but this machine."""
        if self._browser is None:
            playwright = self._opened.enter_context(sync_playwright())
            expect.set_options(timeout=PATIENCE_MS)
            alone = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
            self._browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", alone])
            self._opened.callback(self._browser.close)
        return self._browser

    def close(self) -> None:
        """Ends it; the next test that asks gets a new one."""
        self._browser = None
        self._opened.close()
