"""Kill -9 in the middle of sessions of real packages: each goes on as it declares, and no session is left.

One worker plays two rollouts of each environment that is installed: one declares `restartable`, the other nothing. It
is killed after their second action. Another worker brings the first session back, and refuses the second one.

| environment | who counts its sessions |
|---|---|
| OpenEnv | the package's server (`active_sessions`) |
| MCP over HTTP | a layer before the SDK's server, which ends the sessions of clients that are gone |
| SkyRL-Gym, GEM | the game, which notes that it is made and closed |
"""

import asyncio
import contextlib
import importlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.support.games import RIGHT, SEED, WRONG
from tests.support.pool import opened_pool
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import Step, call, say, wait
from tests.support.waiting import until_true
from tests.support.worker_process import ROOT, started_worker

from rolloutpool_common.outcomes import Category, FinishReason, RolloutStatus
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.server import serve_callback

# The packages' own: they warn of their own parts.
pytestmark = pytest.mark.filterwarnings("default")


@dataclass
class Played:
    """How an environment is played."""

    entry: str
    """Of the operator's file, without what it declares."""
    acts: list[Step]
    """Before the kill two, after it one."""
    reads: list[str]
    """What the policy has read in the end."""
    sessions: Callable[[], int]
    """How many there are now; of a killed worker none."""
    task: Any = None
    reward: float | None = None
    over: bool = True
    """Whether the environment ends the episode."""


@contextlib.contextmanager
def openenv(log: Path) -> Iterator[Played]:
    games: Any = importlib.import_module("tests.environments.openenv_games")
    with games.serve_games(games.NumberEnvironment, games.SaidAction) as served:
        fields = 'action_field = "message"\nobservation_field = "said"'
        yield Played(
            f'kind = "openenv"\nurl = "{served.url}"\n{fields}',
            [say(f"{WRONG}"), say(f"{WRONG}"), say(f"{RIGHT}")],
            ["Guess a number.", "wrong at guess 1", "wrong at guess 2", "right at guess 3"],
            served.sessions,
            reward=0.0,
        )


@contextlib.contextmanager
def openenv_tools(log: Path) -> Iterator[Played]:
    games: Any = importlib.import_module("tests.environments.openenv_games")
    action = importlib.import_module("openenv.core.env_server.types").Action
    with games.serve_games(games.NumberTools, action) as served:
        guesses: list[Step] = [say(calls=[call("guess", {"number": n})]) for n in (WRONG, WRONG, RIGHT)]
        yield Played(
            f'kind = "openenv"\nurl = "{served.url}"',
            [*guesses, say("That is it.")],
            ["wrong at guess 1", "wrong at guess 2", "right at guess 3"],
            served.sessions,
            over=False,
        )


@dataclass
class BoundSessions:
    """What an MCP server has to do for itself: it ends the session of a client that is gone, or of a lower attempt."""

    app: Any
    sessions: dict[str, tuple[str, int]] = field(default_factory=dict)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope.get("headers", ())}
        begun: list[str] = []

        async def seen(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] < 300:
                given = {name.decode().lower(): value.decode() for name, value in message["headers"]}
                begun.extend([given["mcp-session-id"]] if "mcp-session-id" in given else [])
            await send(message)

        await self.app(scope, receive, seen)
        if scope["type"] != "http":
            return
        if scope["method"] == "DELETE":
            self.sessions.pop(headers["mcp-session-id"], None)
        # The client listens for as long as it lives.
        elif scope["method"] == "GET" and headers.get("mcp-session-id") in self.sessions:
            await self._end(scope, headers["mcp-session-id"])
        elif scope["method"] == "POST" and begun and "mcp-session-id" not in headers:
            uid, attempt = headers["x-rollout-id"], int(headers["x-rollout-attempt"])
            self.sessions[begun[0]] = (uid, attempt)
            for session, (other, number) in list(self.sessions.items()):
                if other == uid and number < attempt:
                    await self._end(scope, session)

    async def _end(self, scope: Any, session: str) -> None:
        async def nothing() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def ignore(message: Any) -> None:
            assert message.get("status", 200) < 300, message

        headers = [(b"mcp-session-id", session.encode()), *(pair for pair in scope["headers"] if pair[0] == b"host")]
        await self.app({**scope, "method": "DELETE", "headers": headers}, nothing, ignore)
        self.sessions.pop(session, None)


def _adds() -> list[Step]:
    return [*(say(calls=[call("add", {"n": n})]) for n in (1, 2, 3)), say("That is it.")]


@contextlib.contextmanager
def mcp_url(log: Path) -> Iterator[Played]:
    app = BoundSessions(importlib.import_module("tests.environments.mcp_server").make_server().streamable_http_app())
    with serve_callback(app, [0]) as served:
        yield Played(
            f'kind = "mcp"\nurl = "{served.url}/mcp"',
            _adds(),
            ["counter 1", "counter 3", "counter 6"],
            lambda: len(app.sessions),
            over=False,
        )


def _noted(log: Path) -> int:
    """Games that living processes have made and not closed."""
    counts: Counter[str] = Counter()
    for line in log.read_text().splitlines():
        word, pid = line.split()
        counts[pid] += 1 if word == "open" else -1
    return sum(count for pid, count in counts.items() if Path(f"/proc/{pid}").exists())


@contextlib.contextmanager
def skyrl_gym(log: Path) -> Iterator[Played]:
    again = "Please provide your step-by-step reasoning, and also include a tentative numeric answer at the end in"
    last = "Now provide only the final numeric answer in the exact format: '#### ANSWER'."
    yield Played(
        'kind = "skyrl_gym"\nid = "noted_gsm8k"\nmodules = ["tests.environments.skyrl_games"]',
        [say("#### 40"), say("#### 41"), say("#### 42")],
        ["What is 6 times 7?", f"{again} the exact format: '#### ANSWER'.", last, ""],
        lambda: _noted(log),
        task={
            "prompt": [{"role": "user", "content": "What is 6 times 7?"}],
            "reward_spec": {"ground_truth": "42"},
            "max_turns": 3,
        },
        reward=1 + 2 * 0.2 / 3,
    )


@contextlib.contextmanager
def gem(log: Path) -> Iterator[Played]:
    yield Played(
        'kind = "gem"\nid = "noted:Number"\nmodules = ["tests.environments.gem_games"]',
        [say("\\boxed{50}"), say("\\boxed{49}"), say("no number")],
        [],
        lambda: _noted(log),
    )


KINDS = {
    openenv: "openenv",
    openenv_tools: "openenv",
    mcp_url: "mcp",
    skyrl_gym: "skyrl_gym",
    gem: "gem",
}


@contextlib.asynccontextmanager
async def none_left(sessions: Callable[[], int]) -> AsyncIterator[None]:
    """When the block ends, no session is left."""
    yield
    await until_true(lambda: sessions() == 0)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind, id=kind.__name__, marks=pytest.mark.skipif(find_spec(needs) is None, reason=f"needs {needs}")
        )
        for kind, needs in KINDS.items()
    ],
)
async def test_a_killed_workers_sessions_go_on_as_they_declare_and_none_is_left(
    kind: Any, redis_url: str, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    log, go_on = tmp_path / "games", asyncio.Event()
    await asyncio.to_thread(log.touch)
    env = {"GAME_LOG": str(log), "ROLLOUTPOOL_ENVIRONMENTS_FILE": str(tmp_path / "environments.toml")}
    with kind(log) as played:
        file = tmp_path / "environments.toml"
        file.write_text(f'[again]\ncrash = "restartable"\n{played.entry}\n[lost]\n{played.entry}\n')
        file.chmod(0o600)
        script = [*played.acts[:2], wait(go_on), *played.acts[2:]]
        rollouts = [{"environment": {"name": name, "seed": SEED, "task": played.task}} for name in ("again", "lost")]
        async with (
            none_left(played.sessions),
            opened_pool(redis_url) as pool,
            scripted_trainer(tokenizer, *script, announces=True) as trainer,
        ):
            with started_worker(redis_url, [ROOT], **env) as first:
                await first.announced(pool.store)
                uids = await pool.submit(rollouts, shared={"server_url": trainer.url})
                await until_true(lambda: sum(exchange.turn == 3 for exchange in trainer.exchanges) == 2, 60)
                assert played.sessions() == 2
                first.kill()
            go_on.set()
            with started_worker(redis_url, [ROOT], **env) as second:
                await second.announced(pool.store)
                async with pool.reconciled():
                    again, lost = [await pool.result(uid, 60) for uid in uids]
                second.terminate()
                assert await second.ended() == 0, second.log()
            # No turn was sampled twice.
            assert trainer.app.sampling_log.repeated() == {}

    assert (again.status, again.attempt, again.alignment) == (RolloutStatus.COMPLETED, 2, "exact"), again.failure
    read = [message.content for message in again.messages[1:] if message.role != "assistant"]
    assert read == played.reads or not played.reads
    assert (again.finish_reason is FinishReason.ENVIRONMENT) is played.over
    report = again.environment
    assert report is not None
    assert (report.steps, report.done) == (3, played.over)
    if played.reward is not None:
        assert report.reward == again.reward == pytest.approx(played.reward)
    failure = lost.failure
    assert failure is not None
    assert (failure.category, failure.retryable, lost.attempt) == (Category.ENVIRONMENT_LOST, False, 2)
    assert lost.reward is None
