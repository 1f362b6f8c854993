"""The bodies of the callback: nine keys in their order, and a reply that must be an object."""

from typing import Any

import pytest
from pydantic import ValidationError

from rolloutpool_common.protocol.completions import CompletionsRequest, CompletionsResponse
from rolloutpool_common.protocol.messages import Message

KEYS = ["model", "messages", "rollout_id", "temperature", "top_p", "max_tokens", "stop", "logprobs", "response_mask"]
REPLY: dict[str, Any] = {
    "id": "c",
    "created": 1,
    "choices": [{"message": {"role": "assistant", "content": "8"}}],
    "token_ids": [1],
    "logprobs": [-0.5],
}


def test_a_request_has_nine_keys_and_its_frame_lacks_what_changes_with_each_turn() -> None:
    request = CompletionsRequest(messages=[Message(role="user", content="5 + 3")], rollout_id="r")
    assert list(request.model_dump()) == KEYS
    assert list(request.frame()) == KEYS[2:-1]


def test_other_keys_of_a_reply_are_ignored_and_its_version_may_be_a_number() -> None:
    reply = CompletionsResponse.model_validate({**REPLY, "usage": {}, "policy_version": 7})
    assert (reply.policy_version, reply.prompt_token_ids) == ("7", None)


@pytest.mark.parametrize("body", [[], None, "x", 1])
def test_a_reply_that_is_no_object_is_refused(body: object) -> None:
    with pytest.raises(ValidationError, match="must be a JSON object"):
        CompletionsResponse.model_validate(body)
