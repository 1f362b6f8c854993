"""A pool's API by script, on a real socket: each request gets the next of the answers that were laid out for it."""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.threaded_server import QuietHandler, serving


@dataclass
class Seen:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Answer:
    """What to say; `drop` closes the connection instead."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False


class StubPool:
    """Answers by (method, path without query); the last answer of each is repeated."""

    def __init__(self) -> None:
        self.requests: list[Seen] = []
        self._answers: dict[tuple[str, str], list[Answer]] = defaultdict(list)
        self.url = ""

    def on(self, method: str, path: str, *answers: Answer) -> None:
        """Lay out answers."""
        self._answers[method, path].extend(answers)

    def next(self, method: str, path: str) -> Answer:
        """The answer to a request."""
        answers = self._answers[method, path]
        if not answers:
            return Answer(404, {"detail": "Not Found"})
        return answers.pop(0) if len(answers) > 1 else answers[0]


@contextmanager
def stub_pool() -> Iterator[StubPool]:
    """A served stub."""
    pool = StubPool()

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"
        # Head and body in one piece: in two, the second waits 40 ms for the word that the first has come.
        wbufsize = 65_536

        def _answer(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            pool.requests.append(
                Seen(self.command, self.path, dict(self.headers.items()), json.loads(raw) if raw else None)
            )
            answer = pool.next(self.command, self.path.partition("?")[0])
            if answer.drop:
                self.close_connection = True
                return
            body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = _answer

    with serving(Handler) as port:
        pool.url = f"http://127.0.0.1:{port}"
        yield pool
