"""Asks once, when a process starts, whether the addresses that it was given for Redis can ever be of use.

A Redis that is down comes back, so a process starts and waits for it. A database that is not there, a refused password,
a certificate that is not trusted or that Redis wants of its clients, and TLS on one side only stay so until somebody
acts: the process ends and says so.

1. One PING tells the first three.
2. Where it fails otherwise, the address is tried the other way: a handshake where the URL is plain, a plain PING
   without a password where it is `rediss://`, then a handshake without a certificate. Only an answer to this is proof,
   so a slow or dead server is not blamed.
"""

import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import parse_qs, urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.retry import Retry

from rolloutpool_common.security.certificates import find_distrust
from rolloutpool_common.store.errors import FORGOTTEN_ACCOUNT, StoreMisaddressed, StoreUntrusted

ANSWER_SECONDS = 2.0
"""For each step of a connection."""
_PORT = 6379
_NO_DATABASE = "DB index"
"""Redis' words, also where it is not a number that it can have."""
_CERTIFICATE_WANTED = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
"""Older TLS has no word of its own for it."""


def check_addresses(urls: Mapping[str, str]) -> None:
    """Tries each address.

    Args:
        urls: By the name of the setting. A Redis that is down is no fault.

    Raises:
        StoreMisaddressed: One of them can't be of use. The message names its setting, and no password.
    """
    for setting, url in urls.items():
        parts = urlsplit(url)
        where = f"{setting} ({parts.hostname}:{parts.port or _PORT})" if parts.hostname else setting
        try:
            _ping(url)
        except (RedisError, OSError) as error:
            if cause := find_distrust(error):
                raise StoreUntrusted(f"{where}: {StoreUntrusted.__doc__} ({cause})") from None
            fault = _fault(error) or _own_certificate(parts.query)
            if fault := fault or _other_kind(parts.scheme, parts.hostname, parts.port or _PORT):
                raise StoreMisaddressed(f"{where}: {fault}") from None


def _ping(url: str) -> None:
    limits = {"socket_timeout": ANSWER_SECONDS, "socket_connect_timeout": ANSWER_SECONDS}
    with Redis.from_url(url, retry=Retry(NoBackoff(), 0), **limits) as redis:
        redis.ping()


def _fault(error: Exception) -> str | None:
    if isinstance(error, AuthenticationError):
        return f"Redis refuses the name or password; give those that it knows. {FORGOTTEN_ACCOUNT}"
    if isinstance(error, ResponseError) and _NO_DATABASE in str(error):
        return "Redis has no database of this number; name a lower one (0 to 15 are usual), or raise its `databases`"
    return None


def _own_certificate(query: str) -> str | None:
    """Says why the certificate that the URL gives its client can't be used."""
    given = {name: values[-1] for name, values in parse_qs(query).items()}
    if "ssl_certfile" in given:
        try:
            ssl.create_default_context().load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"))
        except OSError as error:
            return f"ssl_certfile and ssl_keyfile of the URL can't be used: {error.strerror}"
    return None


def _other_kind(scheme: str, host: str | None, port: int) -> str | None:
    if host is None:
        return None
    with suppress(OSError), socket.create_connection((host, port), ANSWER_SECONDS) as line:
        if scheme == "rediss":
            line.sendall(b"PING\r\n")
            # Without the password that it wants, Redis answers by an error.
            if line.recv(64).startswith((b"+PONG", b"-")):
                return "Redis speaks no TLS at this port; name its TLS port, or write redis://"
        else:
            with _strangers().wrap_socket(line):
                return "this port speaks TLS; write rediss://"
    if scheme == "rediss":
        with suppress(OSError), socket.create_connection((host, port), ANSWER_SECONDS) as line:
            try:
                with _strangers().wrap_socket(line) as secured:
                    secured.recv(1)
            except ssl.SSLError as error:
                if error.reason == _CERTIFICATE_WANTED:
                    return "Redis wants a certificate of its clients: add ?ssl_certfile=…&ssl_keyfile=… to the URL"
    return None


def _strangers() -> ssl.SSLContext:
    """Makes a context that trusts anybody; nothing is said to whoever this is."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
