"""Which wire a body is of, and what the Osmosis wire accepts."""

from typing import Any

import pytest
from pydantic import ValidationError

from rolloutpool_common.capabilities.osmosis.request import OsmosisRequest, Wire, wire_of


def body(**changes: Any) -> dict[str, Any]:
    """A valid request; a change to `...` takes the field out."""
    fields = {
        "rollout_id": "r",
        "initial_messages": [{"role": "user", "content": "q"}],
        "chat_completions_url": "https://controller/v1/rollouts/r",
        "grade": False,
        **changes,
    }
    return {key: value for key, value in fields.items() if value is not ...}


@pytest.mark.parametrize(
    ("document", "wire"),
    [
        (body(), Wire.OSMOSIS),
        (body(initial_messages=...), Wire.OSMOSIS),
        (body(chat_completions_url=...), Wire.OSMOSIS),
        (body(messages=[]), Wire.OSMOSIS),
        (body(chat_completions_url=..., messages=[]), Wire.V1),
        (body(server_url="http://x"), Wire.AMBIGUOUS),
        (body(chat_completions_url=..., server_url=None), Wire.AMBIGUOUS),
        ({"server_url": "http://x", "messages": [], "chat_completions_url": None}, Wire.AMBIGUOUS),
        (body(completion_callback_url="http://x"), Wire.CALLBACKS),
        (body(grader_callback_url=None), Wire.CALLBACKS),
        ({"server_url": "http://x", "messages": []}, Wire.V1),
        ({}, Wire.V1),
        ([], Wire.V1),
        (None, Wire.V1),
        ("chat_completions_url", Wire.V1),
    ],
)
def test_the_fields_tell_the_wire(document: Any, wire: Wire) -> None:
    assert wire_of(document) is wire


@pytest.mark.parametrize("name", ["", " ", ".", "..", "a/b", "a\\b", "a\0", "x" * 257])
def test_a_name_is_one_segment_of_a_path(name: str) -> None:
    with pytest.raises(ValidationError, match="rollout_id must be"):
        OsmosisRequest.model_validate(body(rollout_id=name))


@pytest.mark.parametrize(
    "change",
    [
        {"rollout_id": ...},
        {"initial_messages": []},
        {"initial_messages": "q"},
        {"agent_timeout_sec": "soon"},
        {"initial_messages": [{"role": "robot"}]},
        {"chat_completions_url": "ftp://x"},
        {"chat_completions_url": "http://"},
        {"llm_api_key": ""},
        {"agent_timeout_sec": float("nan")},
        {"grader_timeout_sec": float("inf")},
        {"metadata": {"rolloutpool": {"unknown": 1}}},
        {"metadata": {"rolloutpool": None}},
        {"metadata": {"rolloutpool": {"max_turns": 101}}},
        {"grade": True},
        {"grade": True, "metadata": {"rolloutpool": {"tools": []}}},
        {"grade": True, "metadata": {"rolloutpool": {"grader": "judge"}}},
        {"grade": True, "metadata": {"rolloutpool": {"grader": {"name": "judge", "deadline_seconds": 0}}}},
    ],
)
def test_what_is_refused(change: dict[str, Any]) -> None:
    OsmosisRequest.model_validate(body())
    with pytest.raises(ValidationError):
        OsmosisRequest.model_validate(body(**change))


def test_the_url_s_fault_names_the_wire_s_own_field() -> None:
    with pytest.raises(ValidationError, match="chat_completions_url must be an HTTP/HTTPS URL"):
        OsmosisRequest.model_validate(body(chat_completions_url="ftp://x"))


def test_what_is_graded_names_its_environment() -> None:
    chosen = {"rolloutpool": {"environment": {"name": "game", "seed": 3}, "tools": ["add"], "max_turns": 4}}
    request = OsmosisRequest.model_validate(body(grade=True, metadata=chosen))
    assert request.options.environment is not None
    assert (request.options.environment.name, request.options.tools, request.options.max_turns) == ("game", ["add"], 4)


GRADER = {"rolloutpool": {"grader": {"name": "judge", "options": {"answer": 38}}}}


@pytest.mark.parametrize(("seconds", "deadline"), [(None, 600.0), (5, 5.0), (0, 0.001), (-3, 0.001), (1e9, 86_400.0)])
def test_what_is_graded_may_name_a_grader_with_the_wire_s_own_time(seconds: float | None, deadline: float) -> None:
    request = OsmosisRequest.model_validate(body(grade=True, grader_timeout_sec=seconds, metadata=GRADER))
    grader = request.rewarded()["grader"]
    assert (grader["name"], grader["options"], grader["deadline_seconds"]) == ("judge", {"answer": 38}, deadline)
    # What is not to be graded asks nobody.
    assert OsmosisRequest.model_validate(body(grade=False, metadata=GRADER)).rewarded() == {}


def test_nulls_stand_for_nothing_as_the_sdk_sends_them() -> None:
    nulls = dict.fromkeys(
        ("label", "metadata", "llm_api_key", "agent_timeout_sec", "grader_timeout_sec", "extra_fields")
    )
    assert OsmosisRequest.model_validate(body(**nulls)).options.max_turns == 100
