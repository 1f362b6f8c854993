"""Harbor's own agent plays Harbor's own trials, and its verifier says what they are worth: `make test-trainers`."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_trainer import LocalPool, callback_app, serve_callback
from rolloutpool_trainer.adapters.harbor import NoVerdict, harbor_rollout, main_reward, play_trial
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation

pytest.importorskip("harbor", reason="Harbor has an environment of its own: make test-trainers")

# Deprecations inside these libraries are not ours to mend.
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(180),
    pytest.mark.skipif(not (shutil.which("bwrap") and shutil.which("tmux")), reason="needs bubblewrap and tmux"),
]

TASK_TOML = """
schema_version = "1.4"
[metadata]
[verifier]
timeout_sec = 60.0
[agent]
timeout_sec = 60.0
[environment]
build_timeout_sec = 60.0
"""
VERIFIER = """#!/bin/bash
[ "$(cat /app/greeting.txt)" = "hello" ] && reward=1
echo "${reward:-0}" > /logs/verifier/reward.txt
"""
AGENT = {"name": "terminus-2", "model_name": "openai/policy", "kwargs": {"record_terminal_session": False}}
BUBBLE = {"import_path": "tests.support.bubble_environment:BubbleEnvironment"}


class Typist:
    """Types one command into the agent's terminal, then says twice that the task is done, as the agent wants it."""

    def __init__(self, word: str) -> None:
        self.tokenizer = load_tokenizer(str(TINY_TOKENIZER))
        self.word = word
        self.sampled: list[list[int]] = []

    async def __call__(self, _: list[int], params: GenerateParams) -> Generation:
        done = sum(one["role"] == "assistant" for one in params.messages)
        keys = [] if done else [{"keystrokes": f"echo {self.word} > /app/greeting.txt\n", "duration": 0.5}]
        said = {"analysis": f"step {done}", "plan": "write", "commands": keys, "task_complete": bool(done)}
        assert self.tokenizer.close_id is not None
        ids = [*self.tokenizer.encode(json.dumps(said)), self.tokenizer.close_id]
        self.sampled.append(ids)
        return Generation(token_ids=ids, logprobs=[-0.25] * len(ids))


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    with LocalPool(workers=1, flower=False, door=True, tokenizers=[str(TINY_TOKENIZER)]) as running:
        yield running


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "greeting"
    for name, text in (
        ("instruction.md", "Write hello into /app/greeting.txt."),
        ("task.toml", TASK_TOML),
        ("tests/test.sh", VERIFIER),
        ("environment/Dockerfile", "FROM debian:12"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "tests/test.sh").chmod(0o755)
    return folder


@pytest.mark.parametrize(("word", "reward"), [("hello", 1.0), ("goodbye", 0.0)])
async def test_a_trial_is_one_exact_sample_with_the_verifier_s_reward(
    pool: LocalPool, task: Path, tmp_path: Path, word: str, reward: float
) -> None:
    typist = Typist(word)
    with serve_callback(callback_app(typist, tokenizer=typist.tokenizer), [0]) as trainer:
        async with pool.async_client() as client:
            batch = await client.submit(
                [harbor_rollout(task, max_tokens_total=100_000)],
                defaults={"tokenizer_name": "rolloutpool/tiny"},
                trainer=trainer.urls,
            )
            await play_trial(batch, 0, task, agent=AGENT, environment=BUBBLE, trials=tmp_path / "trials")
            (result,) = [one async for one in batch.results()]
    assert (result.status, result.reward, result.reward_parts) == (RolloutStatus.COMPLETED, reward, {"reward": reward})
    assert result.metadata["harbor_task"] == "greeting"
    (sample,) = result.samples
    own = [sample.response_ids[one.start : one.start + one.n] for one in sample.segments if one.kind == "sampled"]
    assert own == typist.sampled
    assert len(own) == 3
    assert sum(sample.response_mask) == sum(map(len, own))


async def test_a_trial_without_a_verdict_is_no_reward_of_zero(pool: LocalPool, task: Path, tmp_path: Path) -> None:
    (task / "tests/test.sh").write_text("#!/bin/bash\nexit 1\n")
    typist = Typist("hello")
    with serve_callback(callback_app(typist, tokenizer=typist.tokenizer), [0]) as trainer:
        async with pool.async_client() as client:
            batch = await client.submit(
                [harbor_rollout(task)], defaults={"tokenizer_name": "rolloutpool/tiny"}, trainer=trainer.urls
            )
            with pytest.raises(NoVerdict):
                await play_trial(batch, 0, task, agent=AGENT, environment=BUBBLE, trials=tmp_path / "trials")
            (result,) = [one async for one in batch.results()]
    assert result.failure is not None
    assert (result.failure.kind, result.failure.category) == ("infra", "harness_lost")
    assert "its trial has no verdict" in result.failure.message
    assert result.reward is None


def test_several_rewards_want_a_word_of_the_user() -> None:
    assert main_reward({"reward": 0.5, "style": 1.0}) == 0.5
    assert main_reward({"passed": 1}) == 1.0
    with pytest.raises(ValueError, match="style"):
        main_reward({"passed": 1.0, "style": 0.0})
