"""Contexts that a probe tries: their texts are markers, and calls have the arguments that a template takes."""

import pytest

from rolloutpool_common.rendering import sentinel
from rolloutpool_common.rendering.contexts import EARLIER, histories, switched, switched_systems


def test_plain_texts_are_markers_of_earlier_messages() -> None:
    for history in histories(arguments_as_text=False):
        said = [number for message in history for number in sentinel.markers_in(str(message["content"]))]
        assert said
        assert min(said) >= EARLIER
        assert len(set(said)) == len(said)


@pytest.mark.parametrize(("as_text", "kind"), [(True, str), (False, dict)])
def test_earlier_calls_have_the_arguments_that_the_template_takes(as_text: bool, kind: type) -> None:
    calls = [
        call
        for history in histories(arguments_as_text=as_text)
        for message in history
        for call in message.get("tool_calls", ())
    ]
    assert {type(call["function"]["arguments"]) for call in calls} == {kind}


def test_a_switch_is_tried_first_and_last_in_each_kind_of_message() -> None:
    systems = [context[0]["content"] for context in switched_systems(["/off"])]
    assert systems == ["/off x", "x /off"]
    tried = {(context[-2]["role"] if len(context) > 1 else "user") for context in switched(["/off"])}
    assert tried == {"user", "assistant"}
