"""A pool over real engines: what its rollouts say of ids, masks, log-probabilities and weights is what these have done.

A plain forward of the same weights, by transformers, says what each log-probability must be. All differences are
rounding; where the ids, their places, the mask or the weights were others, they would be thousands of times as large.
"""

import json
import subprocess
import threading
import urllib.error
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from examples.agent import run_agent
from tests.real_engines.conftest import CONTEXT, SMALL, VERSIONS, question
from tests.real_engines.server import TORCH, EngineServer, VllmCompletionsServer

from rolloutpool_common.capabilities.engines.attachments import AttachedPiece
from rolloutpool_common.outcomes import FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import Alignment, RolloutResult
from rolloutpool_common.rendering import TINY
from rolloutpool_rl.attachments import sampling_masks
from rolloutpool_trainer import Batch, LocalPool, RolloutClient

# A test may train the model and start an engine, which takes minutes beside other work.
pytestmark = pytest.mark.timeout(1200)

PROMPTS, SIZE, KEY = 16, 4, "sesame"
TOLERANCE = 1e-4
PLAIN: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
"""With a `top_k` of 0 for none."""


def submit(
    client: RolloutClient,
    engine: EngineServer,
    *,
    url: str | None = None,
    n: int = PROMPTS,
    run: str | None = None,
    **defaults: Any,
) -> Batch:
    """Submits groups of rollouts that ask for sums; with `url` the engine is asked there."""
    options = {"tokenizer_name": TINY, "tools": ["add"], "sampling_params": {"max_tokens": 80}, "callback_api_key": KEY}
    options |= defaults
    rollouts = [{"messages": [{"role": "user", "content": question(i)}], "n": SIZE} for i in range(n)]
    return client.submit(rollouts, trainer=trainer_of(engine, url), defaults=options, run=run)


def trainer_of(engine: EngineServer, url: str | None = None) -> dict[str, Any]:
    """How a batch names it."""
    return {
        "server_urls": [url or engine.url],
        "protocol": engine.protocol,
        "model": "policy",
        "logprobs_mode": "processed",
    }


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
    file.write_text(json.dumps({**PLAIN, "renormalises": True, **sampling, "weights": folders, "samples": asked}))
    model = Path(__file__).with_name("model.py")
    said = subprocess.run([TORCH, model, "score", file], check=True, capture_output=True, timeout=600).stdout
    pairs = [
        (ours, theirs)
        for sample, scores in zip(samples, json.loads(said), strict=True)
        for ours, theirs, flag in zip(sample.response_logprobs, scores, sample.response_mask, strict=True)
        if flag
    ]
    return len(pairs), max(abs(ours - theirs) for ours, theirs in pairs)


def read_results(batch: Batch, acts: Mapping[int, Callable[[], object]]) -> list[RolloutResult]:
    """Reads a batch to its end, and does something when so many results have come."""
    results: list[RolloutResult] = []
    for result in batch.results():
        results.append(result)
        if (act := acts.get(len(results))) is not None:
            act()
    return results


def assert_whole(results: Sequence[RolloutResult], n: int = PROMPTS * SIZE) -> None:
    """Nothing is lost, nothing comes twice, and each mask is proved."""
    assert sorted(result.index for result in results) == list(range(n))
    ends = {(one.status, one.alignment, one.failure and one.failure.message) for one in results}
    assert ends == {(RolloutStatus.COMPLETED, Alignment.EXACT, None)}


def given_first(engine: EngineServer, weights: dict[str, Path]) -> dict[str, Path]:
    """Loads the first weights, and empties what may be cached under their name."""
    engine.load(weights["1"], "1")
    engine.ask("/reset_prefix_cache" if engine.protocol == "vllm" else "/flush_cache")
    return weights


@pytest.mark.parametrize(
    "sampling", [PLAIN, {"temperature": 0.7, "top_p": 0.9, "top_k": 20}], ids=["plain", "narrowed"]
)
def test_each_log_probability_is_the_models_own(
    pool: LocalPool, engine: EngineServer, weights: dict[str, Path], tmp_path: Path, sampling: dict[str, Any]
) -> None:
    known, before = given_first(engine, weights), engine.calls
    # SGLang's are over all ids, and the result says that they are not of what was sampled from. Its masks bring those.
    masked = engine.protocol == "sglang" and sampling is not PLAIN
    with pool.client() as client:
        # The pool takes a `top_k` of 1 at the least, and none means all.
        batch = submit(
            client,
            engine,
            sampling_params={"max_tokens": 80, **{name: n for name, n in sampling.items() if n}},
            attach=["sampling_mask"] if masked else [],
        )
        results = list(batch.results())
        within = [with_masks(result, client.attachments(result.uid).pieces) for result in results] if masked else []
    assert_whole(results)
    # Where nothing fits any more, a turn ends without a call.
    calls = sum(turn.sampled_tokens > 0 for result in results for turn in result.turns)
    assert engine.calls - before == calls
    # The model has learnt to call its tool, so most of them have several turns.
    assert sum(result.num_tool_calls > 0 for result in results) > len(results) / 2
    # vLLM 0.32 names weights in `/inference/v1/generate` alone; since 0.33 in both.
    of = "1" if isinstance(engine, VllmCompletionsServer) else None
    assert {tuple(result.warnings) for result in results} == {("raw_logprobs",) if masked else ()}
    reported = {"temperature": sampling["temperature"]} if masked else sampling
    compared, largest = difference(results, known, tmp_path, of=of, **reported)
    print(f"{calls} turns, {compared} log-probabilities, largest difference {largest:.1e}")
    assert compared == sum(result.response_tokens for result in results)
    assert largest <= TOLERANCE
    if masked:
        assert difference(within, known, tmp_path, **sampling, renormalises=False)[1] <= TOLERANCE


def with_masks(result: RolloutResult, pieces: Sequence[AttachedPiece]) -> RolloutResult:
    """With the log-probabilities within the sampling masks in the place of its own."""
    found = sampling_masks(result, pieces)
    samples = []
    for sample, masks in zip(result.samples, found, strict=True):
        assert [bool(here) for here in masks.present] == [flag == 1 for flag in sample.response_mask]
        own = []
        for place, token in enumerate(sample.response_ids):
            kept = slice(masks.offsets[place], masks.offsets[place + 1])
            assert not masks.present[place] or token in masks.ids[kept]
            own.append(float(masks.logprobs[place]))
        samples.append(sample.model_copy(update={"response_logprobs": own}))
    return result.model_copy(update={"samples": samples})


@pytest.mark.parametrize("engine", ["vllm"], indirect=True)
def test_first_prompts_are_what_vllm_renders(pool: LocalPool, engine: EngineServer) -> None:
    """Its own rendering of messages and tools, by its own tokenizer, gives the same ids."""
    texts = ["What is 1 + 2?", "Ünïcode 😀\r\n\ttabs ", "<|im_end|> typed"]
    messages = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}] for text in texts]
    with pool.client() as client:
        (add,) = [tool.model_dump(exclude_none=True) for tool in client.tools() if tool.function.name == "add"]
        defaults = {"tokenizer_name": TINY, "tools": ["add"], "sampling_params": {"max_tokens": 1}}
        batch = client.submit([{"messages": one} for one in messages], trainer=trainer_of(engine), defaults=defaults)
        results = sorted(batch.results(), key=lambda result: result.index)
    for text, one, result in zip(texts, messages, results, strict=True):
        said = engine.ask("/tokenize", {"model": "policy", "messages": one, "tools": [add]}).json()["tokens"]
        # A typed control string is text here, and a control token for vLLM.
        assert (list(result.samples[0].prompt_ids) == said) == ("<|im_end|>" not in text)


@pytest.mark.parametrize(
    ("engine", "mode", "first"),
    [
        ("vllm", "abort", 11),
        ("vllm", "wait", 21),
        ("vllm", "keep", 31),
        ("sglang", "abort", 11),
        ("sglang", "retract", 21),
    ],
    indirect=["engine"],
)
def test_weights_change_while_turns_are_sampled(
    pool: LocalPool, engine: EngineServer, weights: dict[str, Path], tmp_path: Path, mode: str, first: int
) -> None:
    """As a trainer does it: the run is paused, the engine too; weights are loaded and named, and both go on."""
    # A name stands for the same weights for good: the prefix cache is salted with it.
    names = {version: str(first + place) for place, version in enumerate(VERSIONS)}
    engine.load(weights["1"], names["1"])
    known, run = {name: weights[version] for version, name in names.items()}, f"{engine.protocol}-{mode}"
    with pool.client() as client:
        batch = submit(client, engine, n=3 * PROMPTS, run=run)

        def update() -> None:
            client.pause(run)
            engine.pause(mode)
            engine.load(weights["2"], names["2"])
            engine.resume()
            client.announce(run, names["2"])
            client.resume(run)

        results = read_results(batch, {PROMPTS: update})
    assert_whole(results, 3 * PROMPTS * SIZE)
    # Engines end what they abort, so those turns had to be asked for their rest.
    assert any(turn.aborts for result in results for turn in result.turns) == (mode == "abort")
    both = [one for one in results if len({part.policy_version for part in one.samples[0].segments} - {None}) == 2]
    compared, largest = difference(results, known, tmp_path)
    print(f"{len(both)} rollouts over the update, {compared} log-probabilities, largest difference {largest:.1e}")
    assert largest <= TOLERANCE
    assert difference(both, known, tmp_path, of=names["1"])[1] > 100 * TOLERANCE


@pytest.mark.parametrize("engine", ["vllm", "sglang"], indirect=True)
def test_an_engine_that_is_killed_loses_nothing(
    pool: LocalPool, engine: EngineServer, weights: dict[str, Path], tmp_path: Path
) -> None:
    # What has no name before somebody names it is called `default`.
    known = {**given_first(engine, weights), "default": weights["1"]}
    again = threading.Timer(1.0, engine.start)

    def die() -> None:
        engine.kill()
        again.start()

    with pool.client() as client:
        results = read_results(submit(client, engine), {SIZE: die})
    again.join()
    assert_whole(results)
    assert difference(results, known, tmp_path)[1] <= TOLERANCE


@pytest.mark.parametrize("engine", ["vllm", "sglang"], indirect=True)
def test_a_worker_that_is_killed_loses_nothing(
    pool: LocalPool, engine: EngineServer, weights: dict[str, Path], tmp_path: Path
) -> None:
    """Its turns in flight are sampled anew by the other worker, and none of what was sampled before is."""
    known = {**given_first(engine, weights), "default": weights["1"]}
    with pool.client() as client:
        results = read_results(submit(client, engine, n=3 * PROMPTS), {SIZE: lambda: pool.kill_worker(0)})
    assert_whole(results, 3 * PROMPTS * SIZE)
    again = [result for result in results if result.attempt > 1]
    assert any(turn.resampled for result in again for turn in result.turns)
    assert not any(turn.resampled for result in results if result not in again for turn in result.turns)
    assert difference(results, known, tmp_path)[1] <= TOLERANCE


@pytest.mark.parametrize("engine", SMALL, indirect=True)
def test_a_context_that_ends_is_asked_for_no_more_than_fits(
    pool: LocalPool, engine: EngineServer, weights: dict[str, Path], tmp_path: Path
) -> None:
    known = given_first(engine, weights)
    with pool.client() as client:
        # The first prompts leave some fifty places, the last ones none, and each number between them comes.
        rollouts = [{"messages": [{"role": "user", "content": question(1) + " so" * n}]} for n in range(180, 260)]
        defaults: dict[str, Any] = {"tokenizer_name": TINY, "tools": ["add"], "callback_api_key": KEY}
        defaults["sampling_params"] = {"max_tokens": 4000}
        batch = client.submit(rollouts, trainer=trainer_of(engine), defaults=defaults)
        results = list(batch.results())
    too_long = [result for result in results if result.failure is not None]
    assert {(one.failure.kind, one.num_llm_calls) for one in too_long if one.failure} == {(FailureKind.REQUEST, 0)}
    sampled = [result for result in results if result.failure is None]
    assert {result.alignment for result in sampled} == {Alignment.EXACT}
    assert FinishReason.LENGTH in {result.finish_reason for result in sampled}
    turns = [turn for result in sampled for turn in result.turns if turn.sampled_tokens]
    # SGLang leaves two places unused.
    assert CONTEXT - 2 <= max(turn.prompt_tokens + turn.sampled_tokens for turn in turns) <= CONTEXT
    assert difference(sampled, known, tmp_path, of="1")[1] <= TOLERANCE


@pytest.mark.parametrize("engine", ["vllm", "sglang"], indirect=True)
def test_an_agent_at_the_door_is_sampled_by_an_engine(
    pool: LocalPool, engine: EngineServer, weights: dict[str, Path], tmp_path: Path
) -> None:
    """It knows nothing of a pool, and its history goes to the engine as the ids that were sampled."""
    known = given_first(engine, weights)
    with pool.client() as client:
        batch = submit(client, engine, n=2, tools=[], harness={"external": True})
        for index in range(2 * SIZE):
            session = batch.session(index)
            solved = True
            try:
                run_agent(f"{session.url}/v1", session.key, question(index))
            # What a small model may have the agent do: a tool or an argument that does not exist, or too long a talk.
            except (KeyError, TypeError, ValueError, urllib.error.HTTPError):
                solved = False
            batch.end_session(index, reward=float(solved))
        results = list(batch.results())
    assert_whole(results, 2 * SIZE)
    assert {len(result.samples) for result in results} == {1}
    assert difference(results, known, tmp_path)[1] <= TOLERANCE
