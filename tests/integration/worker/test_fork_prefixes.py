"""On real tokenizers: whatever was sampled, forks share their parent's ids up to the turn at which they leave it."""

import random
from typing import Any

import pytest
from tests.support.forks import context_before, fork
from tests.support.inside_worker import REPLAY, InsideWorker
from tests.support.replays import reproduced
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import say
from tests.tokenizers.real import real_directory, real_tokenizer

from rolloutpool_common.outcomes import RolloutStatus

pytestmark = pytest.mark.real_tokenizer

FAMILIES = ("qwen2_5", "qwen3", "llama3", "llama3_2", "mistral_nemo", "gemma3", "deepseek_v3")
KWARGS = {"llama3_2": {"date_string": "26 Jul 2024"}}
WORDS = (
    "Sure",
    " ",
    "\n",
    "é",
    "e\u0301",
    "\U0001f9ee",
    "38",
    "{",
    '"a":',
    "<b>",
    " 15.0",
    "Calculate",
    "  ",
    "\t",
    "ß",
)
TURNS = 4


def text(rng: random.Random) -> str:
    """Something that many templates and tokenizers do not give back as it was."""
    return "x" + "".join(rng.choices(WORDS, k=rng.randint(1, 9))) + "."


@pytest.mark.parametrize("keeps_ids", [True, False], ids=["keeps", "renders"])
@pytest.mark.parametrize("family", FAMILIES)
async def test_forks_share_what_came_before(inside: InsideWorker, family: str, keeps_ids: bool) -> None:
    rng = random.Random(f"{family} {keeps_ids}")
    tokenizer = real_tokenizer(family)
    kwargs = KWARGS.get(family, {})
    steps: list[dict[str, Any]] = [{"sample": {}}]
    for _ in range(TURNS - 1):
        steps += [{"say": [{"role": "user", "content": text(rng)}]}, {"sample": {}}]
    lines = [say(text(rng), stop=rng.random() < 0.8) for _ in range(TURNS)]
    options: dict[str, Any] = {"keeps_ids": keeps_ids, "template_kwargs": kwargs}
    async with scripted_trainer(tokenizer, *lines, **options) as trainer:
        parent = await inside.run_one(
            server_url=trainer.url,
            messages=[{"role": "user", "content": text(rng)}],
            tokenizer_name=str(real_directory(family)),
            template_kwargs=kwargs,
            agent=REPLAY,
            metadata={"steps": steps},
        )
    assert parent.status is RolloutStatus.COMPLETED, parent.failure
    for turn in range(1, TURNS + 1):
        async with scripted_trainer(tokenizer, *(say(text(rng)) for _ in range(TURNS)), **options) as trainer:
            first, second = await fork(inside, parent, turn, n=2, server_url=trainer.url)
        for child in (first, second):
            assert child.status is RolloutStatus.COMPLETED, child.failure
            assert context_before(child.samples, turn) == context_before(parent.samples, turn)
            # Earlier turns lie in samples of their own where the trainer has rendered them otherwise since.
            for before in range(1, turn):
                assert context_before(child.samples, before) == context_before(parent.samples, before)
            assert [t.sampled_tokens for t in child.turns[: turn - 1]] == [
                t.sampled_tokens for t in parent.turns[: turn - 1]
            ]
            await reproduced(child, inside.services.tokenizers)
