"""The batch that forks make: the parent's options but its endpoint, and a reason for each rollout that cannot go on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
from pydantic import ValidationError
from tests.support.finished_rollouts import rollout, sample, turn
from tests.support.forks import planned
from tests.support.journals import observation_record, turn_record
from tests.support.kept_journals import OF_RELEASE_0_2, carrying

from rolloutpool_api.errors import Conflict, Rejected
from rolloutpool_common.capabilities.forks.wire import ForkRequest
from rolloutpool_common.capabilities.grading.errors import GraderFault
from rolloutpool_common.capabilities.grading.kept import without_grade
from rolloutpool_common.capabilities.grading.wire import GradeReport
from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.environments import CrashEffect, EnvironmentFacts, EnvironmentStep
from rolloutpool_common.protocol.journal import EditRecord, EnvironmentRecord, JournalRecord
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.replay import ReplayRecord
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.store import NewBatch
from rolloutpool_common.store.records import merge_spec

URL = "http://127.0.0.1:8081"
OPTIONS = {
    "tokenizer_name": "t",
    "max_turns": 6,
    "sampling_params": {"temperature": 0.5, "top_k": 3},
    "idempotent": True,
    "v1": True,
    "mask_mode": "exact",
}
MESSAGES = [Message(role="user", content="ask"), Message(role="assistant", content="a"), Message(role="user"),
            Message(role="assistant", content="b")]  # fmt: skip


FIRST, ANSWER, SECOND = turn_record("a"), observation_record("and?"), turn_record("b")
RECORDS = (FIRST, ANSWER, SECOND)


def parent(
    options: dict[str, Any] | None = None,
    records: Sequence[JournalRecord] = RECORDS,
    submitted: str = "ask",
    **changes: Any,
) -> RolloutResult:
    """Two turns of eight sampled ids."""
    plain = rollout(
        sample("ask", ("sampled", "aaaaaaaa", 1), ("glue", "-", 1), ("sampled", "bbbbbbbb", 2)),
        messages=MESSAGES,
        labels={"x": "y"},
        **{"turns": [turn(1), turn(2)], "metadata": {"a": 1, "b": 2}, **changes},
    )
    asked = Message(role="user", content=submitted).wire()
    return carrying(plain, records, [asked], options={**OPTIONS, **(options or {})})


def in_environment(crash: CrashEffect, snapshot: str | None = None) -> list[JournalRecord]:
    """Two turns, of which an environment has answered the first."""
    session = EnvironmentRecord(name="game", crash=crash, messages=[], tools_digest="d")
    facts = EnvironmentFacts((EnvironmentStep(0),), snapshot)
    return [session, FIRST, replace(ANSWER, environment=facts), SECOND]


def specs(batch: NewBatch) -> list[Any]:
    return [merge_spec(batch.shared, one.overrides, uid="u") for one in batch.rollouts]


def faults(result: RolloutResult, at: int, **request: Any) -> dict[str, str]:
    with pytest.raises(Rejected) as caught:
        planned(result, at, **{"server_url": URL, **request})
    assert caught.value.total == len(caught.value.faults)
    return {fault.path: fault.message for fault in caught.value.faults}


def test_options_are_the_parent_s_but_for_its_endpoint_s_own() -> None:
    batch = planned(parent(), 2, server_url=URL, callback_api_key="k", metadata={"b": 3}, labels={"z": "1"})
    (spec,) = specs(batch)
    assert (spec.tokenizer_name, spec.max_turns, spec.mask_mode) == ("t", 6, "exact")
    assert (spec.idempotent, spec.v1, spec.server_url, spec.callback_api_key) == (False, False, URL, "k")
    assert (spec.sampling_params.temperature, spec.sampling_params.extra()) == (0.5, {"top_k": 3})
    assert (spec.metadata, spec.labels) == ({"a": 1, "b": 3}, {"x": "y", "z": "1"})
    assert [message.content for message in spec.messages] == ["ask"]
    assert spec.fork.model_dump() == {"uid": parent().uid, "turn": 2, "train_trunk": False}
    assert batch.labels == {"z": "1", "forked_from": parent().uid}
    assert batch.trunk is not None
    assert RolloutResult.model_validate_json(batch.trunk) == parent()


def test_what_the_request_gives_wins() -> None:
    (spec,) = specs(
        planned(
            parent(),
            1,
            trainer={"server_urls": [URL]},
            sampling_params={"temperature": 1.0, "min_p": 0.1},
            max_turns=9,
            max_tokens_total=99,
        )
    )
    assert (spec.max_turns, spec.max_tokens_total, spec.sampling_params.temperature) == (9, 99, 1.0)
    assert spec.sampling_params.extra() == {"top_k": 3, "min_p": 0.1}


def test_several_forks_are_a_group_with_seeds_of_their_own() -> None:
    plain = planned(parent(), 2, n=3, server_url=URL, rollout_id="f")
    seeded = planned(
        parent(), 2, n=3, trainer={"server_urls": [URL, "http://127.0.0.1:8082"]}, rollout_id="f", seed=5, group="g"
    )
    assert (
        [one.rollout_id for one in plain.rollouts]
        == [one.rollout_id for one in seeded.rollouts]
        == [*("f-0", "f-1", "f-2")]
    )
    assert {one.group for one in plain.rollouts} == {f"{parent().uid}/2"}
    assert {one.group for one in seeded.rollouts} == {"g"}
    assert [spec.sampling_params.extra().get("seed") for spec in specs(seeded)] == [5, 6, 7]
    # A group stays at one endpoint.
    assert len({spec.server_url for spec in specs(seeded)}) == 1
    assert plain.digest != planned(parent(), 1, n=3, server_url=URL, rollout_id="f").digest


def test_a_url_alone_is_asked_in_the_parent_s_protocol() -> None:
    engine = parent({"protocol": "vllm", "model": "m"})
    (spec,) = specs(planned(engine, 2, server_url=URL))
    assert (spec.protocol, spec.model) == ("vllm", "m")
    (other,) = specs(planned(engine, 2, trainer={"server_urls": [URL], "protocol": "sglang"}))
    assert (other.protocol, other.model) == ("sglang", "m")
    with pytest.raises(Conflict, match="another kind"):
        planned(parent(), 2, trainer={"server_urls": [URL], "protocol": "vllm"})


def test_an_edited_history_begins_with_what_was_submitted() -> None:
    edit = EditRecord(messages=[MESSAGES[0].wire()], entries=(), planned=ANSWER.planned)
    (spec,) = specs(planned(parent(records=(FIRST, edit, SECOND), submitted="first"), 2, server_url=URL))
    assert [message.content for message in spec.messages] == ["first"]


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH, FinishReason.ENVIRONMENT])
def test_past_the_end(reason: FinishReason) -> None:
    found = faults(parent(finish_reason=reason), 3)
    assert "2 is the last" in found["turn"]
    assert "2 turns" in found["turn"]
    assert planned(parent(finish_reason=reason), 2, server_url=URL).trunk


def test_past_an_answer_that_used_up_the_tokens() -> None:
    answered: dict[str, Any] = {"turns": [turn(1), turn(2, tool_calls=0)], "finish_reason": FinishReason.MAX_TOKENS}
    assert "2 is the last" in faults(parent(**answered), 3, max_tokens_total=100)["turn"]
    # What these agents and strategies do behind an answer is their own.
    for options in {"agent": "mine"}, {"environment": {"name": "game"}}:
        assert planned(parent(options, **answered), 3, server_url=URL, max_tokens_total=100).trunk
    hinted = parent(**answered, metadata={"termination_strategy": "mine"})
    assert planned(hinted, 3, server_url=URL, max_tokens_total=100).trunk


@pytest.mark.parametrize(
    "changes",
    [
        {"finish_reason": FinishReason.MAX_TURNS},
        {"finish_reason": FinishReason.MAX_TOKENS},
        {"finish_reason": FinishReason.ERROR, "status": RolloutStatus.FAILED},
        {"finish_reason": FinishReason.DEADLINE, "status": RolloutStatus.EXPIRED},
    ],
)
def test_what_a_limit_or_a_failure_ended_can_go_on(changes: dict[str, Any]) -> None:
    assert planned(parent(**changes), 3, server_url=URL).trunk
    assert "turn" in faults(parent(**changes), 4)


def test_a_grade_that_failed_says_nothing_of_the_conversations_end() -> None:
    for reason, last in (FinishReason.STOP, 2), (FinishReason.MAX_TURNS, 3):
        graded = parent(grade=GradeReport(grader="g", finish_reason=reason), finish_reason=reason)
        failed = without_grade(graded, GraderFault("is down").failure())
        assert failed.finish_reason is FinishReason.ERROR
        assert planned(failed, last, server_url=URL).trunk
        assert f"{last} is the last" in faults(failed, last + 1)["turn"]


def test_limits_that_leave_no_room() -> None:
    assert "max_turns" in faults(parent({"max_turns": 1}), 2)
    assert planned(parent({"max_turns": 1}), 2, server_url=URL, max_turns=2).trunk
    assert "8 sampled tokens" in faults(parent({"max_tokens_total": 8}), 2)["max_tokens_total"]
    assert planned(parent({"max_tokens_total": 9}), 2, server_url=URL).trunk


def test_faults_are_named_as_the_request_has_them() -> None:
    assert set(faults(parent(), 2, server_url=None)) == {"server_url"}
    assert set(faults(parent(), 2, n=3, seed=1, sampling_params={"temperature": 9})) == {"sampling_params.temperature"}


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"turn": 0},
        {"turn": -1},
        {"turn": 102},
        {"turn": "many"},
        {"turn": 1, "n": 0},
        {"turn": 1, "n": 1025},
        {"turn": 1, "seed": -1},
        {"turn": 1, "server_url": "ftp://x"},
        {"turn": 1, "messages": []},
        {"turn": 1, "fork": {}},
    ],
)
def test_nonsense_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ForkRequest.model_validate(document)


def test_a_result_without_a_record() -> None:
    with pytest.raises(Conflict, match="no record"):
        planned(parent().model_copy(update={"replay": None}), 1, server_url=URL)
    of_0_2 = parent().model_copy(update={"replay": ReplayRecord.model_validate(OF_RELEASE_0_2)})
    with pytest.raises(Conflict, match=r"release 0\.2"):
        planned(of_0_2, 1, server_url=URL)
    with pytest.raises(Conflict, match="changed since its worker wrote it: messages"):
        planned(parent().model_copy(update={"messages": []}), 1, server_url=URL)


def test_rollouts_without_tokens_and_of_several_branches() -> None:
    plain = parent().model_copy(update={"samples": []})
    with pytest.raises(Conflict, match="no tokens"):
        planned(carrying(plain, RECORDS, []), 1, server_url=URL)
    branches = parent(records=(*RECORDS, replace(FIRST, branch=1)))
    with pytest.raises(Conflict, match="several branches"):
        planned(branches, 1, server_url=URL)


def test_environments_whose_sessions_cannot_be_made_again() -> None:
    game = {"environment": {"name": "game"}}
    lost = parent(game, in_environment(CrashEffect.NONE))
    with pytest.raises(Conflict, match="crash: none"):
        planned(lost, 2, server_url=URL)
    assert planned(lost, 1, server_url=URL).trunk
    without = parent(game, in_environment(CrashEffect.SNAPSHOT))
    with pytest.raises(Conflict, match="snapshot of environment game after turn 1"):
        planned(without, 2, server_url=URL)
    assert planned(without, 1, server_url=URL).trunk
    assert planned(parent(game, in_environment(CrashEffect.SNAPSHOT, "AA==")), 2, server_url=URL).trunk
    for crash in (CrashEffect.STATELESS, CrashEffect.RESTARTABLE):
        assert planned(parent(game, in_environment(crash)), 2, server_url=URL).trunk


def test_nobody_else_says_that_a_rollout_is_a_fork() -> None:
    batch = planned(parent(), 2, server_url=URL)
    assert "fork" in orjson.loads(batch.shared)
    assert all("fork" not in orjson.loads(one.overrides) for one in batch.rollouts)
