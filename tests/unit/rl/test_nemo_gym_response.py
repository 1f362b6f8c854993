"""NeMo Gym's response, and what NeMo-RL makes of it. The real types: tests/trainers/test_nemo.py."""

from typing import Any

import pytest
from tests.support.exported_rollouts import FORKED, MESSAGES, ONE, PLAIN, UNTRAINED, UPDATED, failure, rollout

from rolloutpool_rl.errors import ExportRefused
from rolloutpool_rl.nemo_gym_response import nemo_gym_response

SYSTEM = {"role": "system", "content": "Be brief."}


def as_nemo_rl_reads(response: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Ids and mask, by the rules of NeMo-RL at 7ea279abf, nemo_rl/environments/nemo_gym.py."""
    ids: list[int] = []
    mask: list[int] = []
    for item in response["output"]:
        if not item.get("generation_token_ids"):
            continue
        prompt, sampled = item["prompt_token_ids"], item["generation_token_ids"]
        assert prompt[: len(ids)] == ids, "not contiguous"
        assert len(sampled) == len(item["generation_log_probs"])
        mask += [0] * (len(prompt) - len(ids)) + [1] * len(sampled)
        ids = [*prompt, *sampled]
    return ids, mask


def test_the_last_item_of_each_turn_has_its_ids() -> None:
    tools = [{"type": "function", "name": "add"}]
    response = nemo_gym_response(PLAIN, {"tools": tools, "model": "m"})
    types = [(item["type"], sorted(name for name in item if "token_ids" in name)) for item in response["output"]]
    ids = ["generation_token_ids", "prompt_token_ids"]
    assert types == [
        ("function_call", []),
        ("function_call", ids),
        ("function_call_output", []),
        ("function_call_output", []),
        ("message", ids),
    ]
    assert response["output"][1]["generation_token_ids"] == [100, 101]
    assert response["output"][4]["prompt_token_ids"] == [1, 2, 3, 100, 101, 102, 103, 104]
    assert response["output"][4]["generation_log_probs"] == [-0.5]
    assert (response["model"], response["tools"], response["status"]) == ("m", tools, "completed")
    # The answer in the prompt is the row's, and no item of the response.
    assert "An example" not in str(response)


def test_a_turn_that_an_agent_took_out_of_training_is_context() -> None:
    untrained = ONE | {"response_mask": [0, 0, 0, 0, 0, 1], "response_logprobs": [0.0] * 5 + [-0.5]}
    ids, mask = as_nemo_rl_reads(nemo_gym_response(rollout(1, untrained), {}))
    assert ids == [1, 2, 3, *ONE["response_ids"]]
    assert mask == [0] * 8 + [1]


def test_a_title_that_a_program_asked_for_beside_its_line_is_no_turn_of_it() -> None:
    side = {"line": 1, "kind": "side", "why": "", "turns": 1, "tokens": 3, "trained_tokens": 0}
    main = side | {"line": 2, "kind": "main", "turns": 2, "samples": [0]}
    session = rollout(4, ONE, num_llm_calls=3, harness={"calls": 3, "lines": [side, main]})
    assert nemo_gym_response(session, {}) == nemo_gym_response(rollout(4, ONE), {})
    child = rollout(4, ONE, num_llm_calls=3, harness={"calls": 3, "lines": [main | {"samples": []}]})
    with pytest.raises(ExportRefused, match="is of another line of talk than its transcript"):
        nemo_gym_response(child, {})


def test_a_turn_over_an_update_of_the_weights_is_one() -> None:
    assert nemo_gym_response(rollout(4, UPDATED), {}) == nemo_gym_response(rollout(4, ONE), {})


def test_what_was_cut_is_incomplete() -> None:
    response = nemo_gym_response(rollout(1, ONE, finish_reason="length"), {})
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_what_is_refused() -> None:
    with pytest.raises(ExportRefused, match="r5 has 2 samples"):
        nemo_gym_response(FORKED, {})
    with pytest.raises(ExportRefused, match="has 0 samples"):
        nemo_gym_response(rollout(1, UNTRAINED), {})
    with pytest.raises(ExportRefused, match="for a reason that is not the policy's"):
        nemo_gym_response(rollout(1, ONE, **failure("infra")), {})
    with pytest.raises(ExportRefused, match="edited its history"):
        nemo_gym_response(rollout(1, ONE, messages=[SYSTEM, MESSAGES[6]]), {})
