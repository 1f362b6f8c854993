"""The viewer in a browser, in front of answers that a test chooses: nobody else is asked, and every complaint counts.

The files are served under the same policy as the API serves them.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from playwright.sync_api import Browser, Page, Route

from rolloutpool_common.viewer.assets import PAGE, POLICY, viewer_files

__all__ = ["ViewedPool", "viewed"]

SCREENSHOTS = os.environ.get("ROLLOUTPOOL_SCREENSHOTS")
HOST = "http://pool.test"
PATIENCE_MS = 30_000
"""What is slow here is the machine."""


class ViewedPool:
    """Answers by path; a path without one is a 404. With a key, only requests that carry it are answered."""

    def __init__(self, browser: Browser, *, scheme: str = "light") -> None:
        self.answers: dict[str, Any] = {}
        self.key: str | None = None
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.complaints: list[str] = []
        self._files = viewer_files()
        self._context = browser.new_context(
            color_scheme="dark" if scheme == "dark" else "light", viewport={"width": 1280, "height": 800}
        )
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", lambda message: self._complain(message.text))
        self.page.on("pageerror", lambda error: self._complain(str(error)))
        self.page.on("dialog", lambda dialog: self._complain(dialog.message))
        self.page.route("**/*", self._answer)

    def open(self, address: str = "") -> Page:
        """Opens a view, such as `#/batch/b1`."""
        self.page.goto(f"{HOST}/ui{address}")
        self.page.locator("main h1").first.wait_for()
        return self.page

    def look(self, name: str) -> None:
        """Keeps a picture of the page for people, where ROLLOUTPOOL_SCREENSHOTS names a folder for them."""
        if SCREENSHOTS is not None:
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")

    def module(self, name: str, expression: str, value: Any = None) -> Any:
        """Evaluates an expression with a module of the viewer as `m` and a value as `v`."""
        return self.page.evaluate(
            f"async (v) => {{ const m = await import('/ui/{name}'); return {expression}; }}", value
        )

    def close(self) -> None:
        """Ends the page."""
        self._context.close()

    def _complain(self, text: str) -> None:
        # The browser itself notes every answer that is an error, also those that the viewer expects and shows.
        if not text.startswith("Failed to load resource: the server responded with a status of 4"):
            self.complaints.append(text)

    def _answer(self, route: Route) -> None:
        asked = urlsplit(route.request.url)
        if f"{asked.scheme}://{asked.netloc}" != HOST:
            self.complaints.append(f"asked {route.request.url}")
            route.abort()
            return
        name = asked.path.removeprefix("/ui").lstrip("/") or PAGE
        if asked.path.startswith("/ui") and name in self._files:
            content, kind = self._files[name]
            route.fulfill(body=content, content_type=kind, headers={"Content-Security-Policy": POLICY})
            return
        self.asked.append((asked.path, dict(parse_qsl(asked.query))))
        if self.key is not None and route.request.headers.get("authorization") != f"Bearer {self.key}":
            status, answer = 401, {"error": {"message": "this key is unknown"}}
        elif asked.path in self.answers:
            status, answer = 200, self.answers[asked.path]
        else:
            status, answer = 404, {"error": {"message": "there is nothing"}}
        route.fulfill(status=status, body=json.dumps(answer), content_type="application/json")


@contextlib.contextmanager
def viewed(browser: Browser, **options: Any) -> Iterator[ViewedPool]:
    """A pool to look at; at the end nothing has complained."""
    pool = ViewedPool(browser, **options)
    try:
        yield pool
    finally:
        pool.close()
    assert pool.complaints == []
