"""Rollouts in an environment, from the ticket to the result: what is asked, what is journaled, what is closed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.games import GUESS, INVITATION, RIGHT, SEED, WRONG, deeds, still_open
from tests.support.inside_worker import InsideWorker, inside_worker
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import Step, call, hang, say
from tests.support.waiting import until_true

from rolloutpool_common.outcomes import Boundary, Category, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.journal import EnvironmentRecord, ObservationRecord
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.store import Store
from rolloutpool_rl.turn_rewards import turn_rewards


@pytest.fixture(autouse=True)
def game_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the sessions do."""
    path = tmp_path / "games"
    path.touch()
    monkeypatch.setenv("GAME_LOG", str(path))
    return path


def guess(*numbers: int, text: str = "") -> Step:
    return say(text, calls=[call("guess", {"number": number}) for number in numbers])


def game(name: str = "game_restartable", **task: Any) -> dict[str, Any]:
    return {"environment": {"name": name, "seed": SEED, "task": task or None}}


def contents(messages: list[Any]) -> list[Any]:
    return [message.content for message in messages if message.role in ("tool", "user")]


async def test_the_policy_plays_until_the_episode_is_over(
    inside: InsideWorker, tokenizer: ChatTokenizer, game_log: Path
) -> None:
    script: list[Step] = [guess(WRONG), guess(WRONG, RIGHT), say("never asked")]
    async with scripted_trainer(tokenizer, *script) as trainer:
        result = await inside.run_one(server_url=trainer.url, **game())
        assert (result.status, result.finish_reason) == (RolloutStatus.COMPLETED, FinishReason.ENVIRONMENT)
        assert contents(result.messages)[1:] == [
            INVITATION, "wrong at guess 1", "wrong at guess 2", "right at guess 3",
        ]  # fmt: skip
        report = result.environment
        assert report is not None
        assert report.model_dump() == {
            "name": "game_restartable",
            "seed": SEED,
            "crash": "restartable",
            "steps": 3,
            "step_rewards": [-0.5, -0.5, 1.0],
            "step_turns": [1, 2, 2],
            "done": True,
            "reward": 1.0,
            "parts": {"guesses": 3.0},
        }
        # Each request for a turn brings the tools, and the trainer's prompt shows them, so the ledger is exact.
        assert {str(exchange.document["tools"]) for exchange in trainer.of(result.uid)} == {str([GUESS.model_dump()])}
        assert result.alignment == "exact"
        assert result.samples[0].response_mask == trainer.app.get_session(result.rollout_id).response_mask
    assert deeds(game_log) == [
        f"open {result.uid} 1",
        f"guess {result.uid} 1 {WRONG}",
        f"guess {result.uid} 1 {WRONG}",
        f"guess {result.uid} 1 {RIGHT}",
        f"close {result.uid} 1",
    ]


async def test_each_message_is_an_action_in_a_text_game(inside: InsideWorker, tokenizer: ChatTokenizer) -> None:
    script = [say(f"Is it {WRONG}?"), say(f"Then it is {RIGHT}!")]
    async with scripted_trainer(tokenizer, *script) as trainer:
        result = await inside.run_one(server_url=trainer.url, **game("text_game"))
        assert "tools" not in trainer.exchanges[0].document
    assert result.finish_reason is FinishReason.ENVIRONMENT
    assert contents(result.messages)[1:] == [INVITATION, "wrong at guess 1", "right at guess 2"]
    assert result.environment is not None
    assert (result.environment.reward, result.environment.step_rewards) == (1.0, [-0.5, 1.0])
    assert (result.environment.step_turns, turn_rewards(result)) == ([1, 2], [-0.5, 1.0])
    # Each step is shown as a tool's time is.
    assert [[(tool.name, tool.ok) for tool in turn.tools] for turn in result.turns] == [[("text_game", True)]] * 2


@pytest.mark.parametrize(
    ("options", "reason", "turns"),
    [
        ({"max_turns": 2}, FinishReason.MAX_TURNS, 2),
        ({"max_tokens_total": 1}, FinishReason.MAX_TOKENS, 1),
        ({"metadata": {"max_assistant_turns": 1}}, FinishReason.MAX_ASSISTANT_TURNS, 1),
    ],
)
async def test_a_text_game_ends_at_the_limits_too_and_sees_the_last_action(
    inside: InsideWorker, tokenizer: ChatTokenizer, options: dict[str, Any], reason: FinishReason, turns: int
) -> None:
    async with scripted_trainer(tokenizer, say(f"{WRONG}")) as trainer:
        result = await inside.run_one(server_url=trainer.url, **game("text_game"), **options)
    assert (result.finish_reason, result.num_llm_calls) == (reason, turns)
    assert result.environment is not None
    assert (result.environment.steps, result.environment.done, result.environment.reward) == (turns, False, 0.0)


async def test_an_edited_history_leaves_the_session_alone(inside: InsideWorker, tokenizer: ChatTokenizer) -> None:
    script = [say(f"Is it {WRONG}?"), say(f"Is it {WRONG}?"), say(f"Is it {RIGHT}?")]
    async with scripted_trainer(tokenizer, *script) as trainer:
        result = await inside.run_one(
            server_url=trainer.url, context={"limit_tokens": 16, "on_limit": "truncate"}, **game("text_game")
        )
    assert result.finish_reason is FinishReason.ENVIRONMENT
    assert contents(result.messages)[-1] == "right at guess 3"


async def test_the_journal_goes_first(inside: InsideWorker, store: Store, tokenizer: ChatTokenizer) -> None:
    async with scripted_trainer(tokenizer, guess(WRONG), hang()) as trainer:
        (uid,) = await inside.submit(dict(server_url=trainer.url, **game()))
        ticket = asyncio.create_task(inside.take(uid))
        await until_true(lambda: len(trainer.of(uid)) == 2)
        first, _, observation = await store.rollouts.read_journal(uid)
        assert isinstance(first, EnvironmentRecord)
        assert isinstance(observation, ObservationRecord)
        assert observation.environment is not None
        assert [(step.place, step.reward) for step in observation.environment.steps] == [(0, -0.5)]
        assert await store.rollouts.cancel(uid) is RolloutStatus.CANCELLED
        (running,) = inside.services.claims.current()
        running.task.cancel()
        assert await ticket == "stopped"
    assert len(inside.services.environments) == 0


@pytest.mark.parametrize(
    ("crash", "last", "calls"),
    [
        ("stateless", "right at guess 1", 1),
        ("restartable", "right at guess 3", 3),
        ("snapshot", "right at guess 3", 1),
    ],
)
async def test_a_rollout_goes_on_in_another_worker_as_its_environment_declares(
    fake_redis: str,
    tokenizers: TokenizerCache,
    tokenizer: ChatTokenizer,
    game_log: Path,
    crash: str,
    last: str,
    calls: int,
) -> None:
    script = [guess(WRONG), guess(WRONG), guess(RIGHT)]
    async with scripted_trainer(tokenizer, *script, announces=True) as trainer:
        async with inside_worker(fake_redis, tokenizers) as first:
            (uid,) = await first.submit(dict(server_url=trainer.url, **game(f"game_{crash}")))
            # The session, two turns and two observations.
            first.stop_after(5)
            assert await first.take(uid) == "drained"
        async with inside_worker(fake_redis, tokenizers) as second:
            assert await second.take(uid) == "completed"
            result = await second.result(uid)
        assert [exchange.turn for exchange in trainer.of(uid)] == [1, 2, 3]
    assert contents(result.messages)[-1] == last
    assert result.environment is not None
    assert (result.environment.steps, result.environment.step_rewards) == (3, [-0.5, -0.5, 1.0])
    assert (result.environment.step_turns, turn_rewards(result)) == ([1, 2, 3], [-0.5, -0.5, 1.0])
    assert sum(line.startswith(f"guess {uid} 2 ") for line in deeds(game_log)) == calls
    assert [still_open(game_log, uid, attempt) for attempt in (1, 2)] == [0, 0]


async def test_one_that_would_be_lost_is_not_stopped_at_a_border(
    fake_redis: str, tokenizers: TokenizerCache, tokenizer: ChatTokenizer
) -> None:
    async with (
        scripted_trainer(tokenizer, guess(WRONG), guess(RIGHT)) as trainer,
        inside_worker(fake_redis, tokenizers) as worker,
    ):
        (uid,) = await worker.submit(dict(server_url=trainer.url, **game("game_none")))
        worker.stop_after(2)
        assert await worker.take(uid) == "completed"


async def test_a_lost_session_is_an_infra_failure(
    fake_redis: str, tokenizers: TokenizerCache, tokenizer: ChatTokenizer
) -> None:
    async with scripted_trainer(tokenizer, guess(WRONG), hang(), announces=True) as trainer:
        async with inside_worker(fake_redis, tokenizers) as first:
            (uid,) = await first.submit(dict(server_url=trainer.url, **game("game_none")))
            ticket = asyncio.create_task(first.take(uid))
            await until_true(lambda: len(trainer.of(uid)) == 2)
            # As at the end of the drain time.
            first.services.drain.begin()
            ticket.cancel()
            assert await ticket == "drained"
        async with inside_worker(fake_redis, tokenizers) as second:
            assert await second.take(uid) == "failed"
            failure = (await second.result(uid)).failure
    assert failure is not None
    assert (failure.kind, failure.boundary) == (FailureKind.INFRA, Boundary.ENVIRONMENT)
    assert (failure.category, failure.retryable) == (Category.ENVIRONMENT_LOST, False)


async def test_a_call_that_may_be_made_once_only_is_not_made_again_by_another_worker(
    fake_redis: str, tokenizers: TokenizerCache, tokenizer: ChatTokenizer, game_log: Path
) -> None:
    script = [guess(WRONG), guess(RIGHT)]
    async with scripted_trainer(tokenizer, *script, announces=True) as trainer:
        async with inside_worker(fake_redis, tokenizers) as first:
            doubtful, sure = await first.submit(
                *(dict(server_url=trainer.url, **game("game_once", **task)) for task in ({"hang_at": 2}, {}))
            )
            ticket = asyncio.create_task(first.take(doubtful))
            await until_true(lambda: sum(line.startswith(f"guess {doubtful}") for line in deeds(game_log)) == 2)
            # The session, and a turn: the drain passes the border before the tools, and stops it at the next one.
            first.stop_after(2)
            assert await first.take(sure) == "drained"
            # As at the end of the drain time.
            ticket.cancel()
            assert await ticket == "drained"
        async with inside_worker(fake_redis, tokenizers) as second:
            assert await second.take(doubtful) == "failed"
            assert await second.take(sure) == "completed"
            failure = (await second.result(doubtful)).failure
    assert failure is not None
    assert (failure.category, failure.retryable) == (Category.ENVIRONMENT_LOST, False)
    assert "an earlier attempt may have called guess" in failure.message
    made = [line.split()[1:3] for line in deeds(game_log) if line.startswith("guess")]
    assert made == [[doubtful, "1"]] * 2 + [[sure, "1"], [sure, "2"]]


@pytest.mark.parametrize(
    ("task", "category", "kind"),
    [
        ({"open": "wrong task"}, Category.VALIDATION_ERROR, FailureKind.REQUEST),
        ({"open": "fail"}, Category.ENVIRONMENT_ERROR, FailureKind.INFRA),
        ({"open": "hang"}, Category.ENVIRONMENT_ERROR, FailureKind.INFRA),
        ({"call": "fail"}, Category.ENVIRONMENT_ERROR, FailureKind.INFRA),
        ({"call": "hang"}, Category.ENVIRONMENT_ERROR, FailureKind.INFRA),
        ({"score": "fail"}, Category.ENVIRONMENT_ERROR, FailureKind.INFRA),
    ],
    ids=str,
)
async def test_what_the_environment_does_wrong_is_never_the_policys_fault(
    fake_redis: str,
    tokenizers: TokenizerCache,
    tokenizer: ChatTokenizer,
    game_log: Path,
    task: dict[str, Any],
    category: Category,
    kind: FailureKind,
) -> None:
    async with (
        scripted_trainer(tokenizer, guess(RIGHT)) as trainer,
        inside_worker(fake_redis, tokenizers, infra_retries=0, tool_timeout=0.3) as worker,
    ):
        result = await worker.run_one(server_url=trainer.url, **game(**task))
        assert len(worker.services.environments) == 0
    assert result.status is RolloutStatus.FAILED
    assert result.failure is not None
    assert (result.failure.category, result.failure.kind) == (category, kind)
    # The user's error is named with its line.
    assert ("(games.py:" in result.failure.message) == ("fail" in task.values())
    assert result.environment is None or result.environment.reward is None
    assert still_open(game_log, result.uid, 1) == 0


async def test_a_score_that_fails_is_asked_again_and_no_turn_is(
    fake_redis: str, tokenizers: TokenizerCache, tokenizer: ChatTokenizer
) -> None:
    async with (
        scripted_trainer(tokenizer, guess(RIGHT)) as trainer,
        inside_worker(fake_redis, tokenizers, infra_retries=1) as worker,
    ):
        (uid,) = await worker.submit(dict(server_url=trainer.url, **game(score="fail")))
        assert await worker.take(uid) == "retried"
        assert await worker.take(uid) == "completed"
        result = await worker.result(uid)
        assert len(trainer.of(uid)) == 1
    assert result.environment is not None
    assert result.environment.reward == 1.0


async def test_a_full_environment_puts_the_rollout_back_and_counts_no_failure(
    fake_redis: str, tokenizers: TokenizerCache, tokenizer: ChatTokenizer, store: Store
) -> None:
    async with (
        scripted_trainer(tokenizer, guess(RIGHT)) as trainer,
        inside_worker(fake_redis, tokenizers, infra_retries=0) as worker,
    ):
        (uid,) = await worker.submit(dict(server_url=trainer.url, **game(open="full")))
        assert [await worker.take(uid) for _ in range(2)] == ["deferred", "deferred"]
        assert await worker.take(uid) == "completed"
        assert len(trainer.of(uid)) == 1
    assert (await store.totals.read()).totals["requeued:capacity"] == 2
