"""Serves the viewer's pages to a browser on this machine, in front of a file of results or of a pool.

The address has a secret part, made anew at each start, because other users of a machine can connect to its ports too:
`http://127.0.0.1:PORT/SECRET/ui`. The pages ask beside themselves, so what they ask has it as well; without it every
answer is 404. The pages run under the policy that the API serves them with.

In front of a file the page is told, by an attribute, that its texts can be searched here, at `/search`. A pool's texts
are searched in the browser, as far as it has loaded them.
"""

import json
import secrets
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from rolloutpool_common.viewer.assets import PAGE, POLICY, viewer_files
from rolloutpool_trainer.errors import TrainerError
from rolloutpool_trainer.viewer.file_search import FileSearch
from rolloutpool_trainer.viewer.pool_relay import PoolRelay
from rolloutpool_trainer.viewer.result_file import ResultFile

Pieces = Callable[[str], bytes | None]
"""Gives the answer of `GET /v1/tokenizers/{sha}/pieces`; None where it is not known here."""

_PIECES = ("v1", "tokenizers")
_ROOT, _SEARCHED_ROOT = b'<div id="viewer">', b'<div id="viewer" data-search="file">'
_NOTHING = b'{"error": {"message": "there is nothing"}}'
_PAGE_HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
_ANSWER_HEADERS = {"Content-Type": "application/json", "Cache-Control": "no-store"}


class ViewerServer:
    """A server on 127.0.0.1. `serve` blocks until `stop`."""

    def __init__(self, source: ResultFile | PoolRelay, *, port: int = 0, pieces: Pieces | None = None) -> None:
        """Listens."""
        prefix = f"/{secrets.token_urlsafe(18)}"
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(_Answers(source, pieces), prefix))
        self._server.daemon_threads = True
        self._source = source
        self.address = f"http://127.0.0.1:{self._server.server_port}{prefix}/ui"
        """What to open in a browser."""

    def serve(self) -> None:
        """Answers until `stop` is called."""
        self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """Ends `serve`, from another thread."""
        self._server.shutdown()

    def close(self) -> None:
        """Gives the port back, and ends the connections to a pool."""
        self._server.server_close()
        if isinstance(self._source, PoolRelay):
            self._source.close()


class _Answers:
    """Answers what the pages ask."""

    def __init__(self, source: ResultFile | PoolRelay, pieces: Pieces | None) -> None:
        self._source = source
        self._pieces = pieces
        self.search = FileSearch(source, pieces) if isinstance(source, ResultFile) else None
        """None in front of a pool."""

    def answer(self, path: str, query: str, authorization: str | None) -> tuple[int, bytes]:
        """Returns status and body."""
        parts = path.split("/")[1:]
        if tuple(parts[:2]) == _PIECES and parts[3:] == ["pieces"] and self._pieces is not None:
            found = self._pieces(unquote(parts[2]))
            if found is not None:
                return 200, found
        if isinstance(self._source, PoolRelay):
            return self._source.answer(path, query, authorization)
        try:
            if self.search is not None and path == "/search":
                status, document = self.search.answer(query)
            else:
                status, document = self._source.answer(unquote(path), query)
        except TrainerError as error:
            status, document = 500, {"error": {"message": str(error)}}
        return status, json.dumps(document).encode()


def _handler(answers: _Answers, prefix: str) -> type[BaseHTTPRequestHandler]:
    pages = viewer_files()
    if answers.search is not None:
        content, kind = pages[PAGE]
        pages[PAGE] = (content.replace(_ROOT, _SEARCHED_ROOT), kind)

    class ViewerRequest(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # A connection that says nothing must not keep its thread.
        timeout = 60
        # Headers and body are two writes; the second one would wait for an acknowledgement.
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            if not secrets.compare_digest(asked.path[: len(prefix) + 1].encode(), f"{prefix}/".encode()):
                self._send(404, _NOTHING, _ANSWER_HEADERS)
                return
            path = asked.path[len(prefix) :]
            name = PAGE if path == "/ui" else path.removeprefix("/ui/")
            if path.startswith("/ui") and name in pages:
                content, kind = pages[name]
                self._send(200, content, {**_PAGE_HEADERS, "Content-Type": kind})
                return
            status, body = answers.answer(path, asked.query, self.headers.get("Authorization"))
            self._send(status, body, _ANSWER_HEADERS)

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing: each look would be several lines at the terminal."""

    return ViewerRequest
