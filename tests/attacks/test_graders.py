"""Attacks on a pool's graders: many, hanging, nonsensical, deadly, and a group that never ends (`make attacks`).

Each is a pool of real processes. What is measured is printed; what is promised is checked: a failure of a grader is
never a reward, and nobody else waits for it.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.graders import INVALID

from rolloutpool_common.outcomes import Boundary, Category, FailureKind, RolloutStatus
from rolloutpool_common.rendering import TINY, ChatTokenizer, load_tokenizer
from rolloutpool_trainer import FinishedRollout, GenerateParams, Generation, LocalPool, RolloutClient, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

pytestmark = [
    pytest.mark.skipif(not os.environ.get("ROLLOUTPOOL_ATTACKS"), reason="takes minutes: make attacks"),
    pytest.mark.timeout(1500),
]

ROOT = Path(__file__).parents[2]
GRADER_SECONDS = 5
MANY = int(os.environ.get("ROLLOUTPOOL_ATTACKS") or 0)
"""Rollouts with graders at once."""
STUCK = "stuck"


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return load_tokenizer(TINY)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPool]:
    """Two workers, which are started again when they die."""
    log = tmp_path_factory.mktemp("graders") / "log"
    log.touch()
    env = {
        "ROLLOUTPOOL_PLUGINS": "tests.support.graders,tests.attacks.graders",
        "ROLLOUTPOOL_GRADER_TIMEOUT": str(GRADER_SECONDS),
        "GRADER_LOG": str(log),
        "PYTHONPATH": str(ROOT),
    }
    with LocalPool(workers=2, flower=False, tokenizers=[TINY], env=env) as running:
        yield running


@pytest.fixture
def client(pool: LocalPool) -> Iterator[RolloutClient]:
    with pool.client() as opened:
        yield opened


@pytest.fixture(scope="module")
def trainer(tokenizer: ChatTokenizer) -> Iterator[str]:
    """One that answers at once, and never where the prompt says `STUCK`."""
    policy = ScriptedPolicy(tokenizer, turns=1)

    async def generate(prompt_ids: list[int], params: GenerateParams) -> Generation:
        if any(message["content"] == STUCK for message in params.messages):
            await asyncio.Event().wait()
        return await policy(prompt_ids, params)

    with serve_callback(callback_app(generate, tokenizer=tokenizer), [0]) as served:
        yield served.url


def graded(names: Sequence[str], options: Any = None, **more: Any) -> list[dict[str, Any]]:
    """A rollout for each of these graders."""
    return [
        {
            "messages": [{"role": "user", "content": text}],
            "grader": {"name": name, "options": options, **more},
        }
        for name, text in zip(names, calculator_prompts(len(names)), strict=True)
    ]


def defaults() -> dict[str, Any]:
    return {"tokenizer_name": TINY, "idempotent": True}


def check_failed(result: FinishedRollout, category: Category, boundary: Boundary = Boundary.GRADER) -> None:
    """A failure of the infrastructure, which is no reward, and keeps what was sampled."""
    assert result.status is RolloutStatus.FAILED
    assert result.failure is not None
    assert (result.failure.kind, result.failure.category) == (FailureKind.INFRA, category)
    assert result.failure.boundary is boundary
    assert (result.reward, result.token_rewards, result.reward_parts) == (None, None, {})
    assert result.samples


def test_many_rollouts_with_graders(client: RolloutClient, trainer: str) -> None:
    rollouts = graded(["counts", "counts_apart"] * (MANY // 2))
    start = time.monotonic()
    batch = client.submit(rollouts, defaults=defaults(), trainer=trainer)
    results = list(batch.results())
    seconds = time.monotonic() - start
    print(f"{len(results)} graded rollouts in {seconds:.0f} s ({len(results) / seconds:.0f} a second)")
    assert len(results) == len(rollouts)
    assert Counter(result.status for result in results) == {RolloutStatus.COMPLETED: len(rollouts)}
    assert all(result.reward == result.response_tokens for result in results)
    assert Counter(result.grade and result.grade.tries for result in results) == {1: len(rollouts)}


@pytest.mark.parametrize("hanging", ["never", "never_apart"])
def test_a_tenant_whose_grader_hangs_holds_up_no_other(client: RolloutClient, trainer: str, hanging: str) -> None:
    """It has more rollouts than the workers have slots."""
    stuck = client.submit(
        graded([hanging] * 1000, deadline_seconds=600), defaults=defaults(), trainer=trainer, run="hangs"
    )
    while stuck.status().counts[RolloutStatus.GRADING] < 500:
        time.sleep(0.2)
    start = time.monotonic()
    good = client.submit(graded(["counts"] * 100), defaults=defaults(), trainer=trainer, run="good")
    results = list(good.results())
    seconds = time.monotonic() - start
    stuck.cancel()
    print(f"100 rollouts beside 1,000 whose grader ({hanging}) hangs: {seconds:.1f} s")
    assert {result.status for result in results} == {RolloutStatus.COMPLETED}
    assert all(result.reward == result.response_tokens for result in results)
    # The slots of the others are free when the time of one answer is over, and then runs share them.
    assert seconds < 6 * GRADER_SECONDS
    stuck.wait(60)


@pytest.mark.parametrize("name", ["returns", "isolated_returns"])
def test_nonsense_is_a_failure(client: RolloutClient, trainer: str, name: str) -> None:
    rollouts = [graded([name], options)[0] for options in INVALID]
    batch = client.submit(rollouts, defaults=defaults(), trainer=trainer)
    results = list(batch.results())
    assert len(results) == len(INVALID)
    for result in results:
        check_failed(result, Category.GRADE_INVALID)


def test_a_grader_that_kills_its_worker_is_poison_and_takes_no_other_along(client: RolloutClient, trainer: str) -> None:
    rollouts = graded(["counts"] * 300)
    rollouts[5] = graded(["crashes"])[0]
    start = time.monotonic()
    batch = client.submit(rollouts, defaults=defaults(), trainer=trainer)
    results, seconds = {}, {}
    for result in batch.results():
        results[result.index], seconds[result.index] = result, time.monotonic() - start
    deadly = results.pop(5)
    print(f"poison after {seconds.pop(5):.1f} s and {deadly.attempt} attempts, others: {max(seconds.values()):.1f} s")
    check_failed(deadly, Category.POISON, Boundary.WORKER)
    assert deadly.failure is not None
    assert "isolated workers died (exit:9)" in deadly.failure.message
    assert {result.status for result in results.values()} == {RolloutStatus.COMPLETED}
    assert all(result.reward == result.response_tokens for result in results.values())
    assert max(result.attempt for result in results.values()) <= 4 + 6


def test_a_group_whose_last_rollout_never_ends_is_delivered_without_grades(client: RolloutClient, trainer: str) -> None:
    rollouts = graded(["ranks"] * 5, deadline_seconds=6)
    rollouts[2]["messages"][0]["content"] = STUCK
    batch = client.submit(
        [{**rollout, "group": "g"} for rollout in rollouts], defaults=defaults(), trainer=trainer, run="group"
    )
    other = client.submit(graded(["counts"] * 50), defaults=defaults(), trainer=trainer, run="other")
    assert {result.status for result in other.results()} == {RolloutStatus.COMPLETED}
    stream = batch.results()
    for _ in range(4):
        check_failed(next(stream), Category.GROUP_GRADE_LATE)
    batch.cancel()
    (last,) = stream
    assert (last.status, last.reward) == (RolloutStatus.CANCELLED, None)
