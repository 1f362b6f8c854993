"""The seam of a call: headers are found in any case, and repeated ones are joined."""

from rolloutpool_worker.policy.turn_client import ReplyHeaders


def test_headers_are_found_in_any_case() -> None:
    headers = ReplyHeaders([(b"X-Name", b"a"), (b"x-name", b"b"), (b"Content-Type", "ü".encode()), (b"Y", b"\xe9")])
    assert headers["X-NAME"] == headers.get("x-name") == "a, b"
    assert (headers["content-type"], headers["y"], headers.get("z")) == ("ü", "é", None)
    assert list(headers) == ["x-name", "content-type", "y"]
    assert len(headers) == 3
