"""A pool over a real vLLM: what its rollouts say of ids, masks, log-probabilities and weights is what vLLM has done.

A plain forward of the same weights, by transformers, says what each log-probability must be. All differences are
rounding; where the ids, their places, the mask or the weights were others, they would be thousands of times as large.
"""

import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from examples.agent import run_agent
from tests.vllm.conftest import CONTEXT, VERSIONS, question
from tests.vllm.server import PYTHON, VllmServer

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import Alignment, RolloutResult
from rolloutpool_common.rendering import TINY
from rolloutpool_trainer import Batch, LocalPool, RolloutClient

# One test may start vLLM three times, which takes minutes beside other work.
pytestmark = pytest.mark.timeout(1200)

PROMPTS, SIZE = 16, 4
TOLERANCE = 1e-4
PLAIN: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}


def submit(client: RolloutClient, server: VllmServer, *, n: int = PROMPTS, more: str = "", **defaults: Any) -> Batch:
    """Submits groups of rollouts that ask for sums."""
    options = {"tokenizer_name": TINY, "tools": ["add"], "sampling_params": {"max_tokens": 80}} | defaults
    rollouts = [{"messages": [{"role": "user", "content": question(i) + more}], "n": SIZE} for i in range(n)]
    run = options.pop("run", None)
    named = {} if run is None else {"run": run}
    trainer = {"server_urls": [server.url], "protocol": "vllm", "model": "policy", "logprobs_mode": "processed"}
    return client.submit(rollouts, trainer=trainer, defaults=options, **named)


def difference(
    results: Sequence[RolloutResult], weights: dict[str, Path], folder: Path, *, of: str | None = None, **sampling: Any
) -> tuple[int, float]:
    """How many ids were trained, and the largest difference of their log-probabilities to those of plain forwards.

    Each id is held against the weights that its segment names; with `of`, against this version's.
    """
    samples = [sample for result in results for sample in result.samples]
    asked = []
    for sample in samples:
        versions: list[str | None] = [None] * len(sample.response_ids)
        for part in sample.segments:
            if part.kind == "sampled":
                versions[part.start : part.start + part.n] = [of or part.policy_version] * part.n
        assert [version is not None for version in versions] == [flag == 1 for flag in sample.response_mask]
        asked.append(
            {
                "prompt_ids": list(sample.prompt_ids),
                "response_ids": list(sample.response_ids),
                "versions": versions,
            }
        )
    file = folder / "asked.json"
    folders = {version: str(path) for version, path in weights.items()}
    file.write_text(json.dumps({**PLAIN, **sampling, "weights": folders, "samples": asked}))
    model = Path(__file__).with_name("model.py")
    said = subprocess.run([PYTHON, model, "score", file], check=True, capture_output=True, timeout=600).stdout
    pairs = [
        (ours, theirs)
        for sample, scores in zip(samples, json.loads(said), strict=True)
        for ours, theirs, flag in zip(sample.response_logprobs, scores, sample.response_mask, strict=True)
        if flag
    ]
    return len(pairs), max(abs(ours - theirs) for ours, theirs in pairs)


def assert_whole(results: Sequence[RolloutResult], n: int = PROMPTS * SIZE) -> None:
    """Nothing is lost, nothing comes twice, and each mask is proved."""
    assert sorted(result.index for result in results) == list(range(n))
    ends = {(one.status, one.alignment, one.failure and one.failure.message) for one in results}
    assert ends == {(RolloutStatus.COMPLETED, Alignment.EXACT, None)}


@pytest.mark.parametrize(
    "sampling", [PLAIN, {"temperature": 0.7, "top_p": 0.9, "top_k": 20}], ids=["plain", "narrowed"]
)
@pytest.mark.parametrize("kind", ["generate", "completions"])
def test_each_log_probability_is_the_models_own(
    pool: LocalPool,
    vllm: VllmServer,
    small: VllmServer,
    weights: dict[str, Path],
    tmp_path: Path,
    kind: str,
    sampling: dict[str, Any],
) -> None:
    server, path = {"generate": (vllm, "/inference/v1/generate"), "completions": (small, "/v1/completions")}[kind]
    server.ask("/update_weight_version", {"new_version": "1"})
    before = server.log.count(f'POST {path} HTTP/1.1" 200')
    with pool.client() as client:
        batch = submit(
            client,
            server,
            callback_api_key="sesame",
            # vLLM takes 0 or -1 for all of them, and the pool 1 at the least.
            sampling_params={"max_tokens": 80, **{name: value for name, value in sampling.items() if value}},
        )
        results = list(batch.results())
    assert_whole(results)
    # Where nothing fits any more, a turn ends without a call.
    calls = sum(turn.sampled_tokens > 0 for result in results for turn in result.turns)
    assert server.log.count(f'POST {path} HTTP/1.1" 200') - before == calls
    # The model has learnt to call its tool, so most of them have several turns.
    assert sum(result.num_tool_calls > 0 for result in results) > len(results) / 2
    # vLLM 0.32 names weights in `/inference/v1/generate` alone; since 0.33 in both.
    of = None if kind == "generate" else "1"
    compared, largest = difference(results, weights, tmp_path, of=of, **sampling)
    print(f"{kind}: {calls} turns, {compared} log-probabilities, largest difference {largest:.1e}")
    assert compared == sum(result.response_tokens for result in results)
    assert largest <= TOLERANCE


def test_first_prompts_are_what_vllm_renders(pool: LocalPool, vllm: VllmServer) -> None:
    """Its own rendering of messages and tools, by its own tokenizer, gives the same ids."""
    texts = ["What is 1 + 2?", "Ünïcode 😀\r\n\ttabs ", "<|im_end|> typed"]
    messages = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}] for text in texts]
    with pool.client() as client:
        (add,) = [tool.model_dump(exclude_none=True) for tool in client.tools() if tool.function.name == "add"]
        trainer = {"server_urls": [vllm.url], "protocol": "vllm", "model": "policy", "logprobs_mode": "processed"}
        defaults = {"tokenizer_name": TINY, "tools": ["add"], "sampling_params": {"max_tokens": 1}}
        batch = client.submit([{"messages": one} for one in messages], trainer=trainer, defaults=defaults)
        results = sorted(batch.results(), key=lambda result: result.index)
    for text, one, result in zip(texts, messages, results, strict=True):
        said = vllm.ask("/tokenize", {"model": "policy", "messages": one, "tools": [add]}).json()["tokens"]
        # A typed control string is text here, and a control token for vLLM.
        assert (list(result.samples[0].prompt_ids) == said) == ("<|im_end|>" not in text)


@pytest.mark.parametrize(("mode", "first"), [("abort", 11), ("wait", 21), ("keep", 31)])
def test_weights_change_while_turns_are_sampled(
    pool: LocalPool, vllm: VllmServer, weights: dict[str, Path], tmp_path: Path, mode: str, first: int
) -> None:
    """As a trainer does it: the run is paused, the engine too; weights are loaded and named, and both go on."""
    # A name stands for the same weights for good: the prefix cache is salted with it.
    names = {version: str(first + place) for place, version in enumerate(VERSIONS)}
    vllm.load(weights["1"], names["1"])
    vllm.ask("/reset_prefix_cache")
    named = {name: weights[version] for version, name in names.items()}
    with pool.client() as client:
        batch = submit(client, vllm, n=3 * PROMPTS, run=f"run-{mode}", sampling_params={"max_tokens": 80})
        results = []
        for result in batch.results():
            results.append(result)
            if len(results) == PROMPTS:
                client.pause(f"run-{mode}")
                vllm.ask("/pause", mode=mode)
                vllm.load(weights["2"], names["2"])
                vllm.ask("/resume")
                client.announce(f"run-{mode}", names["2"])
                client.resume(f"run-{mode}")
    assert_whole(results, 3 * PROMPTS * SIZE)
    turns = [turn for result in results for turn in result.turns]
    # vLLM ends what it aborts, so those turns had to be asked for their rest.
    assert (sum(turn.aborts for turn in turns) > 0) == (mode == "abort")
    both = [one for one in results if len({part.policy_version for part in one.samples[0].segments} - {None}) == 2]
    assert both
    compared, largest = difference(results, named, tmp_path)
    print(
        f"{mode}: {len(both)} rollouts over the update, {compared} log-probabilities, largest difference {largest:.1e}"
    )
    assert largest <= TOLERANCE
    assert difference(both, named, tmp_path, of=names["1"])[1] > 100 * TOLERANCE


def test_an_engine_that_is_killed_loses_nothing(
    pool: LocalPool, vllm: VllmServer, weights: dict[str, Path], tmp_path: Path
) -> None:
    vllm.load(weights["1"], "1")
    vllm.ask("/reset_prefix_cache")
    with pool.client() as client:
        batch = submit(client, vllm)
        results = []
        for result in batch.results():
            results.append(result)
            if len(results) == SIZE:
                vllm.kill()
                again = threading.Timer(1.0, vllm.start)
                again.start()
    again.join()
    assert_whole(results)
    # What had no name before somebody named it is called `default`.
    named = {"1": weights["1"], "default": weights["1"]}
    assert difference(results, named, tmp_path)[1] <= TOLERANCE


def test_a_context_that_ends_is_asked_for_no_more_than_fits(
    pool: LocalPool, small: VllmServer, weights: dict[str, Path], tmp_path: Path
) -> None:
    with pool.client() as client:
        batch = submit(client, small, more=" so" * 100, callback_api_key="sesame", sampling_params={"max_tokens": 4000})
        results = list(batch.results())
    assert_whole(results)
    assert FinishReason.LENGTH in {result.finish_reason for result in results}
    turns = [turn for result in results for turn in result.turns if turn.sampled_tokens]
    assert max(turn.prompt_tokens + turn.sampled_tokens for turn in turns) == CONTEXT
    assert difference(results, weights, tmp_path, of="1")[1] <= TOLERANCE


def test_an_agent_at_the_door_is_sampled_by_vllm(
    pool: LocalPool, vllm: VllmServer, weights: dict[str, Path], tmp_path: Path
) -> None:
    """It knows nothing of a pool, and its history goes to vLLM as the ids that were sampled."""
    vllm.load(weights["1"], "1")
    vllm.ask("/reset_prefix_cache")
    with pool.client() as client:
        batch = submit(client, vllm, n=2, tools=[], harness={"external": True})
        for index in range(2 * SIZE):
            session = batch.session(index)
            solved = True
            try:
                run_agent(f"{session.url}/v1", session.key, question(index))
            # What a small model may have the agent do: a tool or an argument that does not exist.
            except (KeyError, TypeError, ValueError):
                solved = False
            batch.end_session(index, reward=float(solved))
        results = list(batch.results())
    assert_whole(results, 2 * SIZE)
    assert {len(result.samples) for result in results} == {1}
    assert difference(results, {"1": weights["1"]}, tmp_path)[1] <= TOLERANCE
