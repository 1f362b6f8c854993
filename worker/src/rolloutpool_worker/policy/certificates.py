"""Certificates: what verifies those of trainers and webhooks, made once for the process, because it takes 0.1 s."""

import ssl
from functools import cache


@cache
def verifying() -> ssl.SSLContext:
    """Returns the context of all connections by TLS: the machine's authorities, or those of `SSL_CERT_FILE`."""
    return ssl.create_default_context()
