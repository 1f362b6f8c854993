"""Certificates: why a TLS connection was not made.

A certificate that is not trusted stays so until somebody acts, and nothing must be sent to who shows it. So whoever
meets one says the cause, and what to do, where an ordinary lost connection is only tried again.
"""

import ssl


def find_distrust(error: BaseException) -> str | None:
    """Looks through an error and its causes for a certificate that was not trusted."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"certificate verify failed: {cause.verify_message}"
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return None
