"""The key of a harness: it names a place and proves that the pool has given it out.

A key is `rp-{place}-{proof}`. The proof is HMAC-SHA256 over uid and place, with a secret of the batch, so it is stored
nowhere, is good for one rollout, and ends with it. `place` is the number of the place where the program runs, from 1:
when a program is started anew elsewhere, the keys of older places are refused.
"""

import hashlib
import hmac

PREFIX = "rp-"
PROOF_CHARACTERS = 40


def make_key(secret: bytes, uid: str, place: int) -> str:
    """Makes the key of a rollout's harness."""
    proof = hmac.digest(secret, f"{uid} {place}".encode(), hashlib.sha256).hex()[:PROOF_CHARACTERS]
    return f"{PREFIX}{place}-{proof}"


def place_of(secret: bytes, uid: str, key: str) -> int | None:
    """Returns the place that a key is for; None where the pool has not made it for this rollout."""
    place, _, _ = key.removeprefix(PREFIX).partition("-")
    if not key.startswith(PREFIX) or not place.isascii() or not place.isdigit() or len(place) > 6:
        return None
    return int(place) if hmac.compare_digest(make_key(secret, uid, int(place)).encode(), key.encode()) else None
