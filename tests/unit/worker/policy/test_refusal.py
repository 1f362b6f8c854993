"""Of a trainer's error body only the message counts, in one short line."""

import pytest

from rolloutpool_worker.policy.refusal import LONGEST, message_of


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"message": "weights are loading"}', "weights are loading"),
        (b'{"error": {"type": "x", "message": "weights are loading"}}', "weights are loading"),
        (b'{"error": "weights are loading"}', "weights are loading"),
        (b'{"message": "two\\n lines\\tof\\u001b[2J text"}', "two lines of?[2J text"),
        (b'{"message": 7}', ""),
        (b'{"detail": "the prompt: hello"}', ""),
        (b'["message"]', ""),
        (b'"message"', ""),
        (b"<html>message</html>", ""),
        (b"", ""),
        (b"\xff\xfe", ""),
        (b"[" * 100_000, ""),
        (b'{"error": null}', ""),
    ],
)
def test_only_the_message_is_taken(body: bytes, said: str) -> None:
    assert message_of(body).message == said


def test_a_long_message_is_cut() -> None:
    assert len(message_of(b'{"message": "' + b"x" * 5_000 + b'"}').message) == LONGEST


@pytest.mark.parametrize(
    ("body", "of_policy"),
    [
        (b'{"error": {"type": "BadRequestError", "message": "no such field"}}', True),
        (b'{"object": "error", "type": "BadRequestError", "message": "no such field"}', True),
        (b'{"error": {"type": "invalid_request_error", "message": "no such field"}}', True),
        # Of another service, at an address that a caller has named.
        (b'{"message": "user root, password hunter2"}', False),
        (b'{"error": {"type": "Forbidden", "message": "user root"}}', False),
        (b'{"error": {"type": ["BadRequestError"], "message": "user root"}}', False),
        (b'{"error": "user root"}', False),
    ],
)
def test_only_a_policy_servers_error_may_be_shown(body: bytes, of_policy: bool) -> None:
    assert message_of(body).of_policy is of_policy
