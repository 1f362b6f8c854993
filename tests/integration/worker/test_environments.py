"""kill -9 in the middle of games: each goes on as its environment declares, and no session is left open."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.batches import NOWHERE, new_batch, uids_of
from tests.support.games import RIGHT, SEED, WRONG, GuessingGame, deeds, still_open
from tests.support.inside_worker import inside_worker
from tests.support.pool import opened_pool
from tests.support.resources_server import ROW, ResourcesServer
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import Step, call, say, wait
from tests.support.waiting import until, until_true
from tests.support.worker_process import ROOT, Worker, started_worker

from rolloutpool_common.outcomes import Category, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.security.targets import Targets
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_worker.capabilities.foreign_environments.http import HttpEnvironment, HttpServer
from rolloutpool_worker.environments import ENVIRONMENTS, OpenedSession

PLUGINS = "tests.support.games,tests.support.plugins"
DECLARED = ("stateless", "restartable", "snapshot", "none", "forgetful", "text", "in a call")


def guess(number: int) -> Step:
    return say(calls=[call("guess", {"number": number})])


def game(name: str, rollout_id: str, **task: Any) -> dict[str, Any]:
    environment = {"name": name, "seed": SEED, "task": task or None}
    return {"rollout_id": rollout_id, "environment": environment}


@contextlib.contextmanager
def game_worker(redis_url: str, log: Path, **env: str) -> Iterator[Worker]:
    with started_worker(redis_url, [ROOT], ROLLOUTPOOL_PLUGINS=PLUGINS, GAME_LOG=str(log), **env) as worker:
        yield worker


def read(result: RolloutResult) -> list[Any]:
    """What the policy has read since its prompt."""
    return [message.content for message in result.messages[2:] if message.role != "assistant"]


async def test_games_survive_the_kill_of_their_worker_exactly_as_they_declare(
    redis_url: str, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    log, go_on = tmp_path / "games", asyncio.Event()
    await asyncio.to_thread(log.touch)
    calls: list[Step] = [guess(WRONG), guess(WRONG), wait(go_on), guess(RIGHT)]
    texts: list[Step] = [say(f"{WRONG}"), say(f"{WRONG}"), wait(go_on), say(f"{RIGHT}")]
    # Its second guess never comes back in the first attempt: the worker dies in the middle of it.
    in_a_call = [guess(WRONG), guess(RIGHT)]
    rollouts = [
        *(game(f"game_{name}", name) for name in ("stateless", "restartable", "snapshot", "none")),
        game("forgetful_game", "forgetful"),
        game("text_game", "text"),
        game("game_restartable", "in a call", hang_at=2),
    ]
    scripts: dict[str, list[Step]] = {"text": texts, "in a call": in_a_call}
    async with (
        opened_pool(redis_url) as pool,
        scripted_trainer(tokenizer, *calls, scripts=scripts, announces=True) as trainer,
    ):
        with game_worker(redis_url, log) as first:
            await first.announced(pool.store)
            uids = await pool.submit(rollouts, shared={"server_url": trainer.url})

            async def in_the_middle() -> bool:
                asked = sum(exchange.turn == 3 for exchange in trainer.exchanges)
                return asked == 6 and len(deeds(log)) == 7 + 6 * 2 + 2

            await until(in_the_middle)
            first.kill()
        go_on.set()
        with game_worker(redis_url, log) as second:
            await second.announced(pool.store)
            async with pool.reconciled():
                ended = {name: await pool.result(uid, 60) for name, uid in zip(DECLARED, uids, strict=True)}
            second.terminate()
            assert await second.ended() == 0, second.log()
        # No turn was sampled twice.
        assert trainer.app.sampling_log.repeated() == {}

    assert {result.attempt for result in ended.values()} == {2}
    last = {name: read(result)[-1] for name, result in ended.items() if result.status is RolloutStatus.COMPLETED}
    assert last == {
        "stateless": "right at guess 1",
        "restartable": "right at guess 3",
        "snapshot": "right at guess 3",
        "text": "right at guess 3",
        "in a call": "right at guess 2",
    }
    for name in last:
        result = ended[name]
        assert (result.finish_reason, result.alignment) == (FinishReason.ENVIRONMENT, "exact")
        assert result.environment is not None
        assert (result.environment.reward, result.environment.done) == (1.0, True)
        assert result.environment.step_rewards == [-0.5] * (result.environment.steps - 1) + [1.0]
    for name, category in (("none", Category.ENVIRONMENT_LOST), ("forgetful", Category.ENVIRONMENT_DIVERGED)):
        failure = ended[name].failure
        assert failure is not None
        assert (failure.kind, failure.category, failure.retryable) == (FailureKind.INFRA, category, False)
        # What was sampled and proved before is delivered, and no reward is.
        assert ended[name].num_llm_calls == 0 or ended[name].samples
        assert ended[name].environment is None or ended[name].environment.reward is None  # type: ignore[union-attr]
    # Those of the first attempt ended with their process.
    assert [still_open(log, uid, 2) for uid in uids] == [0] * len(uids)


async def test_a_servers_sessions_survive_it_and_are_all_closed(
    redis_url: str, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    """A resources server, which the operator's file names: each rollout's session is replaced, and none is left."""
    server, go_on, count = ResourcesServer(), asyncio.Event(), 8
    file = tmp_path / "environments.toml"
    with serve_callback(server.app, [0]) as there:
        entry = f'kind = "http"\nurl = "{there.url}"\nplaces = 3\ndone_flag = true\n'
        file.write_text(f'[numbers]\n{entry}crash = "restartable"\n[lost]\n{entry}')
        file.chmod(0o600)
        script: list[Step] = [guess(WRONG), wait(go_on), guess(RIGHT)]
        environment = {"name": "numbers", "seed": SEED, "task": ROW}
        async with opened_pool(redis_url) as pool, scripted_trainer(tokenizer, *script, announces=True) as trainer:
            with started_worker(redis_url, ROLLOUTPOOL_ENVIRONMENTS_FILE=str(file)) as first:
                announced = await first.announced(pool.store)
                assert announced.environments == ["numbers", "lost"]
                uids = await pool.submit([{"environment": environment}] * count, shared={"server_url": trainer.url})
                await until_true(lambda: sum(exchange.turn == 2 for exchange in trainer.exchanges) == 3)
                # The others wait for a place, and cost the server nothing.
                assert len(server.sessions) == 3
                first.kill()
            go_on.set()
            with started_worker(redis_url, ROLLOUTPOOL_ENVIRONMENTS_FILE=str(file)):
                async with pool.reconciled():
                    results = [await pool.result(uid, 60) for uid in uids]
    assert {(result.status, result.attempt) for result in results} == {(RolloutStatus.COMPLETED, 2)}
    for result in results:
        assert read(result)[-2:] == [
            '{"said":"wrong at guess 1","done":false}',
            '{"said":"right at guess 2","done":true}',
        ]
        assert result.environment is not None
        assert (result.environment.reward, result.environment.parts) == (1.0, {"guesses": 2.0})
    assert server.sessions == {}


async def test_a_server_that_hangs_is_huge_or_fails_hurts_its_own_rollouts_only(
    redis_url: str, tokenizers: TokenizerCache, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    manners = {"hang": "hang", "huge": "huge", "failing": "500", "good": ""}
    servers = {name: ResourcesServer(manners={"guess": manner} if manner else {}) for name, manner in manners.items()}
    with contextlib.ExitStack() as stack:
        environments = {}
        for name, server in servers.items():
            url = stack.enter_context(serve_callback(server.app, [0])).url
            environments[name] = HttpEnvironment(name, HttpServer(url=url), Targets.loopback())
        monkeypatch.setattr(ENVIRONMENTS, "_things", environments)
        async with (
            inside_worker(redis_url, tokenizers, infra_retries=0, tool_timeout=3) as worker,
            scripted_trainer(tokenizer, guess(RIGHT), say("done")) as trainer,
        ):
            rollouts = [
                {"environment": {"name": name, "seed": SEED, "task": ROW}} for name in manners for _ in range(4)
            ]
            uids = await worker.submit(*rollouts, server_url=trainer.url)
            await asyncio.gather(*map(worker.take, uids))
            results = [await worker.result(uid) for uid in uids]
            assert len(worker.services.environments) == 0
        for environment in environments.values():
            await environment.aclose()
    for result in results[:12]:
        assert result.failure is not None
        assert (result.failure.kind, result.failure.category) == (FailureKind.INFRA, Category.ENVIRONMENT_ERROR)
    assert {result.status for result in results[12:]} == {RolloutStatus.COMPLETED}
    assert {result.environment.reward for result in results[12:] if result.environment} == {1.0}
    # Closed in each case.
    assert [server.sessions for server in servers.values()] == [{}] * 4


async def test_a_deadline_names_what_the_environment_failed_with(
    redis_url: str, tokenizers: TokenizerCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(GuessingGame):
        async def open(self, task: Any, seed: int | None, rollout_uid: str, attempt: int) -> OpenedSession:
            # The second try is under way when the deadline comes.
            if attempt == 2:
                await asyncio.sleep(60)
            raise RuntimeError("no display")

    monkeypatch.setattr(ENVIRONMENTS, "_things", {"broken": Broken()})
    async with opened_pool(redis_url) as pool, inside_worker(redis_url, tokenizers) as worker:
        batch = new_batch([{"environment": {"name": "broken"}}] * 2, shared={"server_url": NOWHERE}, deadline_s=4)
        await pool.store.batches.submit(batch)
        uids = uids_of(batch)
        await asyncio.gather(*map(worker.take, uids))
        # One waits in the queue, the other one in its second session.
        await worker.take(uids[0])
        async with pool.reconciled():
            results = [await pool.result(uid, 30) for uid in uids]
    for result in results:
        assert result.status is RolloutStatus.EXPIRED
        assert result.waited_for is not None
        assert "environment broken: " in result.waited_for.message
        assert "no display" in result.waited_for.message
