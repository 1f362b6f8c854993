"""The seam of a call: headers have their names in lower case, and repeated ones are joined."""

from rolloutpool_worker.policy.turn_client import read_headers


def test_headers_have_names_in_lower_case() -> None:
    lines = [(b"X-Name", b"a"), (b"x-name", b"b"), (b"Content-Type", "ü".encode()), (b"Y", b"\xe9"), (b"\xe9", b"")]
    assert read_headers(lines) == {"x-name": "a, b", "content-type": "ü", "y": "é", "é": ""}
