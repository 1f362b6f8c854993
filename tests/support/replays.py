"""Replays of rollouts that a test has run."""

from rolloutpool_common.protocol.replay import ReplayReport
from rolloutpool_common.protocol.result import RolloutResult, encode_result
from rolloutpool_common.rendering import TokenizerCache
from rolloutpool_worker.replay.run import Replayer


async def replayed(result: RolloutResult, tokenizers: TokenizerCache, tokenizer: str | None = None) -> ReplayReport:
    """The replay of a result, as it comes out of the wire."""
    return await Replayer(tokenizers).run(RolloutResult.model_validate_json(encode_result(result)), tokenizer)


async def reproduced(result: RolloutResult, tokenizers: TokenizerCache) -> None:
    """Asserts that a replay gives the same rollout again; one in which nothing was sampled has none."""
    report = await replayed(result, tokenizers)
    if not result.turns:
        assert report.lacks is not None
        return
    assert report.lacks is None, report.lacks
    assert report.differences == [], (report.differences[0], report.notes)
    assert report.same
    assert report.turns == len(result.turns)
