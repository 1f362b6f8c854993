"""Agents in OpenEnv's own harness environments and sessions lead rollouts: `make test-trainers TRAINERS=openenv`.

The agent is a program on OpenAI's SDK that OpenEnv starts. It knows nothing of a pool: it reads the user's lines, asks
its model, and prints what the model says.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_trainer import LocalPool, callback_app, serve_callback
from rolloutpool_trainer.adapters.openenv import EpisodeUnscored, play_session, play_turns
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation

harness = pytest.importorskip("openenv.core.harness", reason="OpenEnv has an environment of its own")
rubrics = pytest.importorskip("openenv.core.rubrics")

# Deprecations inside these libraries are not ours to mend.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(180)]

AGENT = """
import json, os, sys
from openai import OpenAI
model = OpenAI(base_url=os.environ["MODEL_URL"], api_key=os.environ["MODEL_KEY"])
messages = []
for line in sys.stdin:
    if line.strip() == "crash":
        sys.exit(3)
    messages.append({"role": "user", "content": line.strip()})
    said = model.chat.completions.create(model="policy", messages=messages).choices[0].message.content
    messages.append({"role": "assistant", "content": said})
    print(json.dumps(said), flush=True)
"""


class Liner(harness.AgenticHarnessAdapter):  # type: ignore[misc, name-defined]
    """Speaks with the agent by lines, over OpenEnv's own process."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.process = harness.HarnessProcess(config.command, config.working_directory, config.env_vars)

    async def start(self, working_directory: str) -> None:
        await self.process.start()

    async def stop(self) -> None:
        await self.process.stop()

    async def inject_tools(self, tools: list[Any], bridge_url: str | None = None) -> None:
        assert not tools

    async def is_alive(self) -> bool:
        return bool(self.process.is_running())

    async def send_message_streaming(self, message: str) -> AsyncIterator[Any]:
        await self.process.write_line(message)
        line = await self.process.read_line(timeout_s=60)
        if line is None:
            raise harness.HarnessError("the agent says nothing")
        done = {"response": json.loads(line), "done": "done" in line}
        yield harness.HarnessEvent(type=harness.HarnessEventType.TURN_COMPLETE, data=done)


class SaysDone(rubrics.Rubric):  # type: ignore[misc, name-defined]
    """Scores a turn."""

    def forward(self, action: Any, observation: Any) -> float:
        return 1.0 if "done" in observation.metadata["response"] else 0.25


class Speaker:
    """Says the next of some texts."""

    def __init__(self, *texts: str) -> None:
        self.tokenizer = load_tokenizer(str(TINY_TOKENIZER))
        self.texts = list(texts)
        self.sampled: list[list[int]] = []

    async def __call__(self, _: list[int], params: GenerateParams) -> Generation:
        assert self.tokenizer.close_id is not None
        ids = [*self.tokenizer.encode(self.texts.pop(0)), self.tokenizer.close_id]
        self.sampled.append(ids)
        return Generation(token_ids=ids, logprobs=[-0.25] * len(ids))


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    with LocalPool(workers=1, flower=False, door=True, tokenizers=[str(TINY_TOKENIZER)]) as running:
        yield running


def environment(session: Any, folder: Path, rubric: Any) -> Any:
    config = harness.HarnessConfig(
        name="liner",
        command=[sys.executable, "-c", AGENT],
        working_directory=str(folder),
        env_vars={"MODEL_URL": f"{session.url}/v1", "MODEL_KEY": session.key},
    )
    return harness.HarnessEnvironment(Liner(config), rubric=rubric)


async def submit(client: Any, urls: Sequence[str]) -> Any:
    defaults = {"tokenizer_name": "rolloutpool/tiny", "harness": {"external": True}}
    return await client.submit(
        [{"messages": [{"role": "user", "content": "x"}]}], defaults=defaults, trainer=list(urls)
    )


def sampled_of(result: Any) -> list[list[int]]:
    (sample,) = result.samples
    assert sum(sample.response_mask) == sum(one.n for one in sample.segments if one.kind == "sampled")
    return [sample.response_ids[one.start : one.start + one.n] for one in sample.segments if one.kind == "sampled"]


async def test_turns_of_a_conversation_are_one_sample_with_the_rubric_s_reward(pool: LocalPool, tmp_path: Path) -> None:
    speaker = Speaker("hm", "done", "never said")
    with serve_callback(callback_app(speaker, tokenizer=speaker.tokenizer), [0]) as trainer:
        async with pool.async_client() as client:
            batch = await submit(client, trainer.urls)
            seen = await play_turns(
                batch, 0, lambda session: environment(session, tmp_path, SaysDone()), ["begin", "go on", "and on"]
            )
            (result,) = [one async for one in batch.results()]
    assert [(one.reward, one.done) for one in seen] == [(0.25, False), (1.0, True)]
    assert (result.status, result.reward) == (RolloutStatus.COMPLETED, 1.0)
    assert sampled_of(result) == speaker.sampled
    assert len(speaker.sampled) == 2


@pytest.mark.parametrize(
    ("says", "rubric", "why"),
    [(["begin", "crash"], SaysDone(), "the agent says nothing"), (["begin"], None, "no rubric")],
    ids=["crashed", "unscored"],
)
async def test_an_episode_without_a_reward_is_no_reward_of_zero(
    pool: LocalPool, tmp_path: Path, says: list[str], rubric: Any, why: str
) -> None:
    speaker = Speaker("hm", "hm")
    with serve_callback(callback_app(speaker, tokenizer=speaker.tokenizer), [0]) as trainer:
        async with pool.async_client() as client:
            batch = await submit(client, trainer.urls)
            with pytest.raises(EpisodeUnscored, match=why):
                await play_turns(batch, 0, lambda session: environment(session, tmp_path, rubric), says)
            (result,) = [one async for one in batch.results()]
    assert result.failure is not None
    assert (result.failure.kind, result.failure.category) == ("infra", "harness_lost")
    assert result.reward is None


class AgentRun(harness.ResourceSession):  # type: ignore[misc, name-defined]
    """A session whose agent runs by itself; what it has printed is what `verify` looks at."""

    def __init__(self, session: Any, reward: float | None) -> None:
        env = {"MODEL_URL": f"{session.url}/v1", "MODEL_KEY": session.key, "PATH": "/usr/bin:/bin"}
        self.reward = reward
        self.agent = subprocess.Popen(
            [sys.executable, "-c", AGENT], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def initial_messages(self) -> list[Any]:
        return []

    def list_tools(self) -> list[Any]:
        return []

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        raise NotImplementedError

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        self.printed, _ = self.agent.communicate("one\ntwo\n", timeout=timeout_s)
        return self.agent.returncode

    def fetch_proxy_trace(self) -> list[Any]:
        return []

    def verify(self, transcript: list[Any], final_state: Any | None = None) -> Any:
        metrics = {"lines": len(self.printed.splitlines()), "note": "words are no part of a reward"}
        return harness.VerifyResult(env_reward=self.reward, done=True, metrics=metrics)

    def close(self) -> None:
        self.agent.kill()
        self.agent.wait()


@pytest.mark.parametrize("reward", [0.5, None])
async def test_an_agent_that_owns_its_loop_is_verified_when_it_has_ended(pool: LocalPool, reward: float | None) -> None:
    speaker = Speaker("a", "b")
    with serve_callback(callback_app(speaker, tokenizer=speaker.tokenizer), [0]) as trainer:
        async with pool.async_client() as client:
            batch = await submit(client, trainer.urls)

            def make(session: Any) -> AgentRun:
                run = AgentRun(session, reward)
                # As OpenEnv's own trainers ask.
                owns_loop: bool = isinstance(run, harness.LoopOwningSession)
                assert owns_loop
                return run

            if reward is None:
                with pytest.raises(EpisodeUnscored, match="reward is None"):
                    await play_session(batch, 0, make, seconds=60)
            else:
                await play_session(batch, 0, make, seconds=60)
            (result,) = [one async for one in batch.results()]
    assert result.reward == reward
    if reward is not None:
        assert result.reward_parts == {"lines": 2.0}
        assert sampled_of(result) == speaker.sampled
