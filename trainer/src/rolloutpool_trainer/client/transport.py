"""How both clients connect: no proxies from the environment, no redirects, one connection per HTTP client."""

import os
import ssl
from typing import Any

import httpx

from rolloutpool_trainer.client import calls

__all__ = ["DEFAULT_TIMEOUT", "connection_settings", "key_from_environment", "timeouts"]

DEFAULT_TIMEOUT = 60.0


def key_from_environment() -> str | None:
    """The key of a pool's API that this process is given; never sent to any other address than the API's."""
    return os.environ.get("ROLLOUTPOOL_API_KEY") or None


def connection_settings(base_url: str, api_key: str | None) -> dict[str, Any]:
    """What every HTTP client of one pool is made with; the TLS context is made once, it takes a tenth of a second."""
    # Over http nothing is verified, and a context that trusts nobody costs nothing.
    tls = base_url.startswith("https://")
    context = ssl.create_default_context() if tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return {
        "base_url": base_url,
        "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
        "verify": context,
        "trust_env": False,
        "limits": httpx.Limits(max_connections=1, max_keepalive_connections=1),
    }


def timeouts(call: calls.Call[calls.T]) -> httpx.Timeout:
    """Time-outs of one request, seconds."""
    return httpx.Timeout(connect=5.0, read=call.read_seconds, write=calls.READ_SECONDS, pool=5.0)
