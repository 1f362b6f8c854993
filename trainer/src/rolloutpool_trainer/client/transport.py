"""How both clients connect: no proxies from the environment, no redirects, one connection per HTTP client."""

import os
import re
import ssl
from typing import Any

import httpx

from rolloutpool_trainer.client import calls
from rolloutpool_trainer.errors import ClientError

DEFAULT_TIMEOUT = 60.0


def key_from_environment() -> str | None:
    """Returns the API key of the environment, if there is one. It is sent to the pool's API only."""
    return os.environ.get("ROLLOUTPOOL_API_KEY") or None


def connection_settings(base_url: str, api_key: str | None) -> dict[str, Any]:
    """Makes the arguments of httpx' clients of a pool. The TLS context is made once, because it takes 0.1 s.

    Raises:
        ClientError: The address is none, or the key cannot be one.
    """
    # Such an address would be asked for as long as a pool that is down, although it can never answer.
    if not _is_address(base_url):
        raise ClientError(f"a pool's address is like http://pool:9000, and this one is {base_url!r}")
    # httpx would quote it in its error.
    if api_key and not re.fullmatch(r"[!-~]+", api_key):
        raise ClientError(
            "the API key has a blank, an end of a line or a letter beyond ASCII, and no key of a pool has"
        )
    # Over http nothing is verified, and an empty context costs nothing.
    tls = base_url.startswith("https://")
    context = ssl.create_default_context() if tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return {
        "base_url": base_url,
        "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
        "verify": context,
        "trust_env": False,
        "limits": httpx.Limits(max_connections=1, max_keepalive_connections=1),
    }


def _is_address(text: str) -> bool:
    try:
        address = httpx.URL(text)
    except httpx.InvalidURL:
        return False
    return address.scheme in ("http", "https") and address.host != ""


def timeouts(call: calls.Call[calls.T]) -> httpx.Timeout:
    """Makes the time-outs of one request."""
    return httpx.Timeout(connect=5.0, read=call.read_seconds, write=calls.READ_SECONDS, pool=5.0)
