"""Whether a result of an engine's rollout is what the engine has noted that it sampled: id by id, weights included.

An engine keeps nothing, so a turn may have been sampled several times: a worker died, or a connection broke, and the
reply was lost. The result must be one way through the notes: each turn is one call, or a chain of calls of one attempt
of which each but the last was aborted; each prompt is what was seen and sampled before it. No other id may be sampled.

    notes    turn 1: prompt 1 2, ids 5 6, abort   prompt 1 2 5 6, ids 7, stop     (lost: prompt 1 2, ids 8 9, stop)
    sample   prompt 1 2, response 5 6 7 …         versions as noted with 5 6 and with 7
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from tests.support.gradual_engine import NotedCall

Result = Mapping[str, Any]
"""A result as JSON has it."""


def chain_of(result: Result, calls: Sequence[NotedCall]) -> list[NotedCall] | None:
    """Finds the calls that a result is made of, in their order; None where there are none.

    Args:
        result: With one sample.
        calls: All that the engine has noted of this rollout.
    """
    (sample,) = result["samples"]
    whole = [*sample["prompt_ids"], *sample["response_ids"]]
    versions, logprobs = _versions(sample), sample["response_logprobs"]
    first = len(sample["prompt_ids"])
    fitting = [
        call
        for call in calls
        if call.ids
        and call.prompt == whole[: len(call.prompt)]
        and call.ids == whole[len(call.prompt) : len(call.prompt) + len(call.ids)]
    ]

    def differs(call: NotedCall) -> tuple[bool, bool]:
        place = slice(len(call.prompt) - first, len(call.prompt) - first + len(call.ids))
        return call.logprobs != logprobs[place], call.versions != versions[place]

    # Two attempts may sample the same ids. Log-probabilities and weights tell them apart.
    fitting.sort(key=differs)

    def rest(before: NotedCall | None) -> list[NotedCall] | None:
        end = first if before is None else len(before.prompt) + len(before.ids)
        aborted = before is not None and before.finish == "abort"
        for call in fitting:
            if before is None:
                fits = call.turn == 1 and len(call.prompt) == end
            elif aborted:
                fits = (call.turn, call.attempt) == (before.turn, before.attempt) and len(call.prompt) == end
            else:
                fits = call.turn == before.turn + 1 and len(call.prompt) >= end
            if fits and (found := rest(call)) is not None:
                return [call, *found]
        # An aborted turn may be the last: the context or the budget was full when it was to go on.
        return [] if before is not None and end == len(whole) and before.turn == result["num_llm_calls"] else None

    return rest(None)


def fault_of(result: Result, calls: Sequence[NotedCall]) -> str | None:
    """What is wrong with the one sample of a result; None where nothing is.

    Args:
        result: Of a completed rollout.
        calls: All that the engine has noted of this rollout.
    """
    if len(result["samples"]) != 1:
        return f"{len(result['samples'])} samples, where nothing can have drifted"
    chain = chain_of(result, calls)
    if chain is None:
        return "no way through what the engine has sampled"
    (sample,) = result["samples"]
    start = len(sample["prompt_ids"])
    mask = [0] * len(sample["response_ids"])
    logprobs = [0.0] * len(mask)
    for call in chain:
        place = slice(len(call.prompt) - start, len(call.prompt) - start + len(call.ids))
        mask[place] = [1] * len(call.ids)
        logprobs[place] = call.logprobs
    if mask != sample["response_mask"]:
        return "the mask is not 1 exactly where ids were sampled"
    if logprobs != sample["response_logprobs"]:
        return "log-probabilities"
    return versions_fault(result, chain)


def versions_fault(result: Result, chain: Sequence[NotedCall]) -> str | None:
    """What is wrong with the weight versions of a result; None where nothing is.

    Args:
        result: With one sample.
        chain: The calls that it is made of.
    """
    (sample,) = result["samples"]
    segments = sample["segments"]
    tiles = [0, *(segment["start"] + segment["n"] for segment in segments)]
    if [segment["start"] for segment in segments] != tiles[:-1] or tiles[-1] != len(sample["response_ids"]):
        return "the segments do not tile the response"
    known, start = _versions(sample), len(sample["prompt_ids"])
    expected: list[str | None] = [None] * len(known)
    for call in chain:
        expected[len(call.prompt) - start : len(call.prompt) - start + len(call.ids)] = call.versions
    if known != expected:
        return "versions"
    numbers = [int(version) for call in chain for version in call.versions]
    if (sample["version_min"], sample["version_max"]) != (min(numbers), max(numbers)):
        return "version_min or version_max"
    if any(after < before for before, after in pairwise(numbers)):
        return "a version that is older than the one before it"
    return None


def _versions(sample: Mapping[str, Any]) -> list[str | None]:
    return [
        segment["policy_version"] if segment["kind"] == "sampled" else None
        for segment in sample["segments"]
        for _ in range(segment["n"])
    ]
