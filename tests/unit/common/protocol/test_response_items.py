"""Messages in the form of the Responses API."""

from typing import Any

from rolloutpool_common.protocol.response_items import answer_items, context_item, output_items

TRANSCRIPT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Guess."},
    {
        "role": "assistant",
        "content": "I try.",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "guess", "arguments": {"number": 3}}}],
    },
    {"role": "tool", "content": "wrong", "tool_call_id": "c1"},
    {"role": "user", "content": "Go on."},
    {"role": "assistant", "content": None, "tool_calls": None},
]


def test_the_transcript_begins_with_the_first_turn() -> None:
    said, called, answered, user, nothing = output_items(TRANSCRIPT)
    assert said["content"] == [{"type": "output_text", "text": "I try.", "annotations": []}]
    assert (called["name"], called["arguments"], called["call_id"]) == ("guess", '{"number": 3}', "c1")
    assert answered == {"type": "function_call_output", "call_id": "c1", "output": "wrong"}
    assert user == {"type": "message", "role": "user", "content": "Go on."}
    assert nothing["content"][0]["text"] == ""


def test_a_call_alone_is_one_item_and_its_arguments_stay_the_policy_s() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "guess", "arguments": '{"number":  3}'}}
    (item,) = answer_items({"role": "assistant", "content": None, "tool_calls": [call]}, 7)
    assert (item["type"], item["arguments"], item["id"]) == ("function_call", '{"number":  3}', "fc_c1")


def test_parts_are_their_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "b"}]
    assert context_item({"role": "user", "content": parts})["content"] == "ab"
