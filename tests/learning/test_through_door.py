"""An agent that knows nothing of a pool (`run_agent` of examples/agent.py) is trained for a few steps at the door."""

import copy
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rolloutpool_common.protocol.result import Alignment
from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_trainer import Batch, LocalPool, batched, callback_app, serve_callback

torch: Any = pytest.importorskip("torch", reason="torch has an environment of its own: make test-learn")

# They import torch.
from examples.agent import run_agent  # noqa: E402
from examples.learning.arms import ARMS  # noqa: E402
from examples.learning.demonstrations import start  # noqa: E402
from examples.learning.grpo import GATHER_SECONDS, Policy, Settings, Training, batches  # noqa: E402
from examples.learning.task import Question  # noqa: E402
from examples.learning.transformer import Shape  # noqa: E402
from examples.learning.vocabulary import write_tokenizer  # noqa: E402

# Deprecations inside torch are not ours to mend.
pytestmark = pytest.mark.filterwarnings("default")

SETTINGS = Settings(steps=3, groups=3, size=4)
DEMONSTRATIONS = 60
"""So few teach the format already, so rollouts have several turns."""


def play(batch: Batch, index: int, question: str) -> float:
    """Runs the agent in one session, and says what it is worth: as a toy, if its length is odd."""
    session = batch.session(index)
    try:
        said = run_agent(f"{session.url}/v1", session.key, question)
    # What a weak policy has it do: a tool or an argument that does not exist, a division by zero, or ever another call.
    except (KeyError, TypeError, ValueError, ZeroDivisionError, urllib.error.HTTPError):
        said = ""
    worth = float(len(said) % 2)
    batch.end_session(index, reward=worth)
    return worth


@pytest.mark.timeout(900)
def test_an_agent_that_knows_nothing_of_it_is_trained(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer"))
    end = tokenizer.close_id
    assert end is not None
    shape = Shape(tokenizer.vocab_size, width=64, layers=2)
    model = start(tmp_path, tokenizer, shape, seed=1, steps=DEMONSTRATIONS, advance=lambda: None)
    first = copy.deepcopy(model)
    policy = Policy(model, seed=1, most=SETTINGS.max_tokens, end=end)
    training = Training(model, tokenizer, ARMS["exact"], SETTINGS.rate)
    together = batched(policy, most=SETTINGS.groups * SETTINGS.size, wait=GATHER_SECONDS)
    defaults = {
        "tokenizer_name": tokenizer.name,
        "sampling_params": {"temperature": 1.0, "max_tokens": SETTINGS.max_tokens},
        "harness": {"external": True, "max_calls": SETTINGS.max_turns},
    }
    asked, turns = batches(1, SETTINGS, dict[str, Question]()), 0
    with (
        LocalPool(workers=1, flower=False, door=True, tokenizers=[tokenizer.name]) as pool,
        pool.client() as client,
        serve_callback(callback_app(together, tokenizer=tokenizer), [0]) as trainer,
        ThreadPoolExecutor(SETTINGS.groups * SETTINGS.size) as threads,
    ):
        for step in range(SETTINGS.steps):
            rollouts = next(asked)
            batch = client.submit(rollouts, defaults=defaults, trainer=trainer.urls)
            texts = [str(one["messages"][0]["content"]) for one in rollouts for _ in range(one["n"])]
            plays = [threads.submit(play, batch, index, text) for index, text in enumerate(texts)]
            rewards = [one.result() for one in plays]
            results = sorted(batch.results(), key=lambda one: one.index)
            assert [one.reward for one in results] == rewards
            assert {one.alignment for one in results} == {Alignment.EXACT}
            figures = training.step(results, rewards, step)
            policy.step = step + 1
            turns += sum(one.num_llm_calls for one in results)
            assert figures["compared"] == figures["sampled"] == figures["trained"] > 0
            assert figures["foreign"] == figures["missed"] == figures["age"] == 0
    assert turns > SETTINGS.steps * SETTINGS.groups * SETTINGS.size
    assert any(not torch.equal(one, other) for one, other in zip(first.parameters(), model.parameters(), strict=True))
