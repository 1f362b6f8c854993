"""A step of training through an imitated vLLM that samples from the model: token-in, without a callback."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.imitated_engine import Answer
from tests.support.vllm_server import VllmServer, serve_vllm

from rolloutpool_common.protocol.result import Alignment
from rolloutpool_common.rendering import ChatTokenizer, load_tokenizer
from rolloutpool_trainer import LocalPool

torch: Any = pytest.importorskip("torch", reason="torch has an environment of its own: make test-learn")

# They import torch.
from examples.learning.arms import ARMS  # noqa: E402
from examples.learning.demonstrations import start  # noqa: E402
from examples.learning.grpo import Settings, Training, batches  # noqa: E402
from examples.learning.task import Question, reward  # noqa: E402
from examples.learning.transformer import Shape, Transformer, noise_of, sample  # noqa: E402
from examples.learning.vocabulary import write_tokenizer  # noqa: E402

# Deprecations inside torch are not ours to mend.
pytestmark = pytest.mark.filterwarnings("default")

SETTINGS = Settings(steps=2, groups=3, size=4)
DEMONSTRATIONS = 60


class ModelServer(VllmServer):
    """Samples from a model, where other tests say what is sampled."""

    def __init__(self, tokenizer: ChatTokenizer, model: Transformer) -> None:
        super().__init__(tokenizer, [])
        self.model = model
        self.version = "step-0"

    def sample(self, name: str, prompt: list[int], most: int) -> Answer:
        """Samples a turn."""
        end = self._tokenizer.close_id
        assert end is not None
        noise = noise_of(name, most, self.model.shape.vocabulary)[None]
        ((ids, logprobs),) = sample(self.model, [prompt], noise, temperature=1.0, end=end)
        return Answer(ids, "stop" if ids[-1] == end else "length", self.spans(len(ids)), logprobs)


@pytest.mark.timeout(900)
async def test_what_an_engine_samples_is_what_is_trained(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer"))
    shape = Shape(tokenizer.vocab_size, width=64, layers=2)
    # Few demonstrations teach the format already, so rollouts have several turns.
    model = start(tmp_path, tokenizer, shape, seed=1, steps=DEMONSTRATIONS, advance=lambda: None)
    training = Training(model, tokenizer, ARMS["exact"], SETTINGS.rate)
    engine, known = ModelServer(tokenizer, model), dict[str, Question]()
    asked = batches(1, SETTINGS, known)
    turns = 0
    async with (
        LocalPool(workers=1, flower=False, tokenizers=[tokenizer.name]) as pool,
        serve_vllm(engine),
        pool.async_client() as client,
    ):
        for step in range(SETTINGS.steps):
            batch = await client.submit(
                next(asked),
                trainer={"server_urls": [engine.url], "protocol": "vllm", "model": "policy"},
                defaults={
                    "tokenizer_name": tokenizer.name,
                    "sampling_params": {"temperature": 1.0, "max_tokens": SETTINGS.max_tokens},
                    "max_turns": SETTINGS.max_turns,
                },
            )
            ended = [result async for result in batch.results()]
            assert {(one.status, one.alignment) for one in ended} == {("completed", Alignment.EXACT)}
            assert {
                part.policy_version
                for one in ended
                for drawn in one.samples
                for part in drawn.segments
                if part.kind == "sampled"
            } == {f"step-{step}"}
            turns += sum(one.num_llm_calls for one in ended)
            rewards = [reward(known[str(one.messages[0].content)], str(one.messages[-1].content)) for one in ended]
            # It raises if a log-probability differs.
            figures = await asyncio.to_thread(training.step, ended, rewards, step)
            assert figures["compared"] == figures["trained"] == sum(one.response_tokens for one in ended)
            engine.version = f"step-{step + 1}"
    assert turns > SETTINGS.steps * SETTINGS.groups * SETTINGS.size, "no rollout had a second turn"
