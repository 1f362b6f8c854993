"""A pool as the viewer's pages ask for it: questions are handed on to its API, with the key of this process."""

import re
from typing import Any

import httpx

from rolloutpool_trainer.client.transport import connection_settings

_PATHS = re.compile(r"/v1/(?:batches|rollouts|tokenizers)(?:/|$)")
"""What the pages look at; nothing else is handed on."""
SECONDS = 60.0


class PoolRelay:
    """Hands questions on to a pool. Only GET, so nothing there can be changed. Safe to ask from several threads."""

    def __init__(self, url: str, api_key: str | None) -> None:
        """Makes a relay; nothing is asked yet."""
        settings = {**connection_settings(url.rstrip("/"), api_key), "limits": httpx.Limits(max_connections=8)}
        self._client = httpx.Client(**settings, timeout=SECONDS)
        self._has_key = api_key is not None

    def answer(self, path: str, query: str, authorization: str | None = None) -> tuple[int, bytes]:
        """Asks the pool."""
        if _PATHS.match(path) is None or ".." in path.split("/"):
            return 404, b'{"error": {"message": "the viewer does not ask for this"}}'
        headers = {} if self._has_key or authorization is None else {"Authorization": authorization}
        target: Any = httpx.URL(f"{path}?{query}" if query else path)
        try:
            answer = self._client.get(target, headers=headers)
        except httpx.HTTPError as error:
            reason = f"{type(error).__name__}: {error}".replace("\\", "/").replace('"', "'")
            return 502, f'{{"error": {{"message": "the pool does not answer: {reason}"}}}}'.encode()
        return answer.status_code, answer.content

    def close(self) -> None:
        """Ends its connections."""
        self._client.close()
