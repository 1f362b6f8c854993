"""The viewer in a browser, in front of answers that a test chooses: nobody else is asked, and every complaint counts.

The files are served under the same policy as the API serves them. A server of this process answers the browser, because
to answer through the browser's driver takes several times as long, for each of some thirty files of a page.
"""

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from playwright.sync_api import Browser, Page, Request
from tests.support.browsers import PATIENCE_MS
from tests.support.waiting import eventually

from rolloutpool_common.viewer.assets import PAGE, POLICY, viewer_files

SCREENSHOTS = os.environ.get("ROLLOUTPOOL_SCREENSHOTS")


class ViewedPool:
    """Answers by path; a path without one is a 404. With a key, only requests that carry it are answered.

    A path with its query, `/v1/batches?limit=200`, goes before the path alone. What is held waits for its event.
    """

    def __init__(self, browser: Browser, *, scheme: str = "light") -> None:
        self.answers: dict[str, Any] = {}
        self.held: dict[str, threading.Event] = {}
        self.key: str | None = None
        # What everything is answered with meanwhile: a status and a document.
        self.failing: tuple[int, Any] | None = None
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.complaints: list[str] = []
        self._unanswered: set[Request] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._serving = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._serving.start()
        self._host = f"http://127.0.0.1:{self._server.server_port}"
        self._context = browser.new_context(
            color_scheme="dark" if scheme == "dark" else "light", viewport={"width": 1280, "height": 800}
        )
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", lambda message: self._complain(message.text))
        self.page.on("pageerror", lambda error: self._complain(str(error)))
        self.page.on("dialog", lambda dialog: self._complain(dialog.message))
        self.page.on("request", self._look_at)
        self.page.on("requestfinished", self._note_end)
        self.page.on("requestfailed", self._note_end)

    def open(self, address: str = "") -> Page:
        """Opens a view, such as `#/batch/b1`. In a page that is open already, the view before it may still be shown."""
        self.page.goto(f"{self._host}/ui{address}")
        self.page.locator("main h1").first.wait_for()
        return self.page

    def hold(self, path: str) -> threading.Event:
        """Holds the answers to a path, perhaps with its query, back; setting the event lets them go."""
        self.held[path] = threading.Event()
        return self.held[path]

    def until_asked(self, path: str, query: dict[str, str]) -> None:
        """Waits until the page has asked for this: what it shows may be there before it asks."""
        eventually(lambda: (path, query) in self.asked, seconds=PATIENCE_MS / 1000)

    def until_answered(self) -> None:
        """Waits until all that the page has asked for so far is answered, and so is in `asked`."""

        def answered() -> bool:
            # Playwright tells of requests and answers only while it is called.
            self.page.wait_for_timeout(20)
            return not self._unanswered

        eventually(answered, seconds=PATIENCE_MS / 1000)

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
        self._server.shutdown()
        self._server.server_close()
        self._serving.join()

    def answer(self, path: str, query: str, authorization: str | None) -> tuple[int, Any]:
        """Finds what is answered to a request for something else than a file: status and document."""
        self.asked.append((path, dict(parse_qsl(query))))
        if self.key is not None and authorization != f"Bearer {self.key}":
            return 401, {"error": {"message": "this key is unknown"}}
        if self.failing is not None:
            return self.failing
        names = (f"{path}?{query}", path)
        for held in [self.held[name] for name in names if name in self.held]:
            held.wait(PATIENCE_MS / 1000)
        for name in names:
            if name in self.answers:
                return 200, self.answers[name]
        return 404, {"error": {"message": "there is nothing"}}

    def _complain(self, text: str) -> None:
        # The browser itself notes every answer that is an error, also those that the viewer expects and shows.
        if not text.startswith("Failed to load resource: the server responded with a status of "):
            self.complaints.append(text)

    def _look_at(self, request: Request) -> None:
        self._unanswered.add(request)
        # The browser finds no other host, and that it has looked for one is a complaint.
        if not request.url.startswith((f"{self._host}/", f"blob:{self._host}/")):
            self.complaints.append(f"asked {request.url}")

    def _note_end(self, request: Request) -> None:
        self._unanswered.discard(request)


def _handler(pool: ViewedPool) -> type[BaseHTTPRequestHandler]:
    files = viewer_files()

    class ViewedRequest(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60
        # Headers and body are two writes; the second one would wait for an acknowledgement.
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            name = asked.path.removeprefix("/ui").lstrip("/") or PAGE
            if asked.path.startswith("/ui") and name in files:
                content, kind = files[name]
                self._send(200, content, {"Content-Type": kind, "Content-Security-Policy": POLICY})
                return
            status, document = pool.answer(asked.path, asked.query, self.headers.get("Authorization"))
            self._send(status, json.dumps(document).encode(), {"Content-Type": "application/json"})

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    return ViewedRequest


@contextlib.contextmanager
def viewed(browser: Browser, **options: Any) -> Iterator[ViewedPool]:
    """A pool to look at; at the end nothing has complained."""
    pool = ViewedPool(browser, **options)
    try:
        yield pool
    finally:
        pool.close()
    assert pool.complaints == []
