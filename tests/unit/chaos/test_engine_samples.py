"""The judge of engines' samples: a right way through what an engine noted is clean, each planted fault is found."""

from dataclasses import asdict, replace
from typing import Any

import pytest
from tests.chaos.engine_samples import judge_engines
from tests.chaos.manners import Manner
from tests.support.engine_calls import chain_of, fault_of
from tests.support.gradual_engine import NotedCall

Entry = dict[str, Any]


def noted(
    turn: int, attempt: int, call: int, prompt: list[int], ids: list[int], *versions: str, finish: str = "stop"
) -> NotedCall:
    """A call whose log-probabilities follow from its ids and its attempt."""
    logprobs = [-(token + attempt / 10) for token in ids]
    spread = list(versions) if len(versions) > 1 else [*versions] * len(ids)
    return NotedCall("b-0", turn, attempt, call, prompt, ids, logprobs, spread, finish)


LOST = noted(1, 1, 1, [1, 2], [3, 9], "7")
"""Its worker died, or its connection did."""
ABORTED = noted(1, 2, 1, [1, 2], [3, 4], "7", finish="abort")
REST = noted(1, 2, 2, [1, 2, 3, 4], [5], "8")
LAST = noted(2, 2, 3, [1, 2, 3, 4, 5, 6], [7, 8], "8", "9")
CALLS = [LOST, ABORTED, REST, LAST]


def result(**changes: Any) -> Entry:
    """What these calls make."""
    sample = {
        "prompt_ids": [1, 2],
        "response_ids": [3, 4, 5, 6, 7, 8],
        "response_mask": [1, 1, 1, 0, 1, 1],
        "response_logprobs": [-3.2, -4.2, -5.2, 0.0, -7.2, -8.2],
        "segments": [
            {"kind": "sampled", "start": 0, "n": 2, "policy_version": "7"},
            {"kind": "sampled", "start": 2, "n": 1, "policy_version": "8"},
            {"kind": "glue", "start": 3, "n": 1, "policy_version": None},
            {"kind": "sampled", "start": 4, "n": 1, "policy_version": "8"},
            {"kind": "sampled", "start": 5, "n": 1, "policy_version": "9"},
        ],
        "version_min": 7,
        "version_max": 9,
    }
    return {"num_llm_calls": 2, "samples": [sample | changes]}


def test_a_right_sample_is_one_way_through_the_notes() -> None:
    assert chain_of(result(), CALLS) == [ABORTED, REST, LAST]
    assert fault_of(result(), CALLS) is None


@pytest.mark.parametrize("lost", [ABORTED, REST, LAST], ids=["aborted", "rest", "last"])
def test_an_id_that_no_call_has_sampled_is_found(lost: NotedCall) -> None:
    calls = [call for call in CALLS if call is not lost]
    assert fault_of(result(), calls) == "no way through what the engine has sampled"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (replace(REST, attempt=1), "no way"),
        (replace(REST, turn=2), "no way"),
        (replace(REST, prompt=[1, 2, 3, 9]), "no way"),
        (replace(LAST, ids=[7, 9]), "no way"),
        (replace(LAST, turn=3), "no way"),
        # A turn that ended is not gone on with, so nobody sampled the 5.
        (replace(ABORTED, finish="stop"), "mask"),
    ],
    ids=["another attempt", "another turn", "another prompt", "another id", "a turn left out", "not aborted"],
)
def test_what_does_not_fit_together_is_found(wrong: NotedCall, said: str) -> None:
    calls = [wrong if call.call == wrong.call else call for call in CALLS[1:]]
    assert said in str(fault_of(result(), calls))


SEGMENTS = result()["samples"][0]["segments"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"response_mask": [1, 1, 1, 1, 1, 1]}, "mask"),
        ({"response_mask": [1, 1, 0, 0, 1, 1]}, "mask"),
        ({"response_logprobs": [-3.1, -4.2, -5.2, 0.0, -7.2, -8.2]}, "log-probabilities"),
        ({"segments": [{**SEGMENTS[0], "policy_version": "8"}, *SEGMENTS[1:]]}, "versions"),
        ({"segments": SEGMENTS[1:]}, "tile"),
        ({"segments": SEGMENTS[:-1]}, "tile"),
        ({"version_min": 8}, "version_min"),
        ({"version_max": None}, "version_min"),
    ],
    ids=str,
)
def test_each_wrong_value_is_found(changes: Entry, said: str) -> None:
    assert said in str(fault_of(result(**changes), CALLS))


def test_two_samples_are_one_too_many() -> None:
    twice = result()
    twice["samples"] *= 2
    assert "2 samples" in str(fault_of(twice, CALLS))


def test_where_two_attempts_sampled_the_same_ids_the_weights_tell_them_apart() -> None:
    same = replace(LAST, attempt=1, versions=["7", "7"], logprobs=[0.0, 0.0])
    assert chain_of(result(), [same, *CALLS]) == [ABORTED, REST, LAST]


def test_where_two_attempts_sampled_the_same_ids_by_the_same_weights_the_log_probabilities_tell_them_apart() -> None:
    same = replace(LAST, attempt=1, logprobs=[-7.1, -8.1])
    assert chain_of(result(), [same, *CALLS]) == [ABORTED, REST, LAST]
    assert fault_of(result(), [same, *CALLS]) is None


def test_a_campaign_s_log_is_read() -> None:
    log = [{"event": "ask", "uid": "b-0"}, *({"event": "drawn", **asdict(call), "at": 1.0} for call in CALLS)]
    found = judge_engines([log], {"b-0": Manner.VLLM, "b-1": Manner.STEADY}, {"b-0": result(), "b-1": {"samples": []}})
    assert found.turns["b-0"] == {
        1: {"turn": 1, "prompt": [1, 2], "ids": [3, 4, 5], "logprobs": [-3.2, -4.2, -5.2]},
        2: {"turn": 2, "prompt": [1, 2, 3, 4, 5, 6], "ids": [7, 8], "logprobs": [-7.2, -8.2]},
    }
    assert (found.over_updates, found.resampled, found.wrong_versions) == (2, 1, [])
    wrong = judge_engines([log], {"b-0": Manner.SGLANG}, {"b-0": result(version_max=8)})
    assert wrong.wrong_versions == ["b-0 (version_min or version_max)"]
    assert judge_engines([log[:-1]], {"b-0": Manner.VLLM}, {"b-0": result()}).turns == {"b-0": {}}
