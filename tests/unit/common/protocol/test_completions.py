"""The bodies of the callback: nine keys in their order, and a reply that must be an object."""

import pytest
from pydantic import ValidationError

from rolloutpool_common.protocol.completions import CompletionsRequest, CompletionsResponse
from rolloutpool_common.protocol.messages import Message

KEYS = ["model", "messages", "rollout_id", "temperature", "top_p", "max_tokens", "stop", "logprobs", "response_mask"]


def test_a_request_has_nine_keys_and_its_frame_lacks_what_changes_with_each_turn() -> None:
    request = CompletionsRequest(messages=[Message(role="user", content="5 + 3")], rollout_id="r")
    assert list(request.model_dump()) == KEYS
    assert list(request.frame()) == KEYS[2:-1]


@pytest.mark.parametrize("body", [[], None, "x", 1])
def test_a_reply_that_is_no_object_is_refused(body: object) -> None:
    with pytest.raises(ValidationError, match="must be a JSON object"):
        CompletionsResponse.model_validate(body)
