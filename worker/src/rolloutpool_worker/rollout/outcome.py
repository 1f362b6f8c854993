"""The result that is made of an attempt, with the record to run it again (`common/protocol/replay.py`)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from rolloutpool_common.outcomes import RolloutEnd, RolloutStatus
from rolloutpool_common.protocol.endpoint import EndpointProtocol, LogprobsMode
from rolloutpool_common.protocol.environments import EnvironmentReport
from rolloutpool_common.protocol.journal import JournalRecord, ObservationRecord
from rolloutpool_common.protocol.kept_journal import keep_journal
from rolloutpool_common.protocol.options import RolloutSpec, RunOptions
from rolloutpool_common.protocol.replay import ReplayRecord, definitions_digest
from rolloutpool_common.protocol.result import RolloutResult, Sample, Spans
from rolloutpool_common.protocol.waiting import Waiting
from rolloutpool_common.store import Claim
from rolloutpool_worker.conversation.conversation import Conversation

KEPT_OPTIONS = frozenset({*RunOptions.model_fields, "sampling_params", "tokenizer_name", "v1"}) - {"metadata"}
"""Fields of a `RolloutSpec` that the record keeps: what decides how it runs. Names and metadata are in the result;
endpoint and key are given anew."""
MOST_TOOLS_BYTES = 16_384
"""Of the definitions of an environment's tools."""
MOST_SNAPSHOTS = 256 * 1024
"""Characters of an environment's snapshots, over all turns of a rollout."""
_NARROWING = frozenset({"min_p", "top_k"})
"""Sampling parameters that leave ids out, as `top_p` does."""
_SHAPING = _NARROWING | {"frequency_penalty", "presence_penalty", "repetition_penalty"}
"""Sampling parameters that change what is sampled from, as `temperature` does."""


def make_result(
    claim: Claim,
    outcome: RolloutEnd,
    talk: Conversation | None,
    *,
    tokenizer: dict[str, str],
    spans: Spans,
    waited_for: Waiting | None = None,
) -> RolloutResult:
    """Makes the record of what has happened, under this outcome. Only reads, so a thread may do it.

    `spans` have what only the attempt knows; the others are those of the claim and of the conversation.
    """
    spec = claim.spec
    own: dict[str, Any] = {"queued_ms": claim.queued_ms}
    own |= {"loop_ms": round(claim.waits.worker * 1000), "redis_ms": round(claim.waits.redis * 1000)}
    if talk is not None:
        own |= {"llm_ms": talk.measures.llm_ms, "tools_ms": talk.measures.tools_ms}
    result = RolloutResult(
        uid=claim.uid,
        rollout_id=spec.rollout_id,
        batch_id=claim.batch_id,
        index=claim.index,
        group=claim.group,
        labels=spec.labels,
        metadata=spec.metadata,
        status=outcome.status,
        finish_reason=outcome.reason,
        failure=outcome.failure,
        waited_for=waited_for,
        spans=spans.model_copy(update=own),
        attempt=claim.attempt,
        worker=claim.worker_id,
        tokenizer=tokenizer,
        **({} if talk is None else _of_talk(talk, outcome)),
    )
    if talk is not None:
        result.replay = replay_record(claim, talk, result)
    return result


def _of_talk(talk: Conversation, outcome: RolloutEnd) -> dict[str, Any]:
    """Returns what the result says of the conversation."""
    measures, samples, beside = talk.measures, _samples(talk), talk.policy.beside
    kept, lacks = ({}, []) if beside is None else beside.fields(samples)
    return {
        "messages": talk.messages,
        "samples": samples,
        "alignment": talk.alignment,
        "drift": dict(measures.drift),
        "warnings": [*measures.warnings(), *_token_warnings(talk), *_engine_warnings(talk), *lacks],
        "turns": measures.reported_turns(),
        "num_llm_calls": len(measures.turns),
        "num_tool_calls": measures.tool_calls,
        "prompt_tokens": sum(turn.prompt_tokens for turn in measures.turns),
        "response_tokens": talk.sampled_tokens,
        "max_context_tokens": measures.max_context,
        "trace": measures.trace if talk.spec.metadata.get("debug_trace") else None,
        "environment": _report(talk),
        **_reward(talk, outcome),
        **kept,
    }


def _samples(talk: Conversation) -> list[Sample]:
    samples = [sample for ledger in talk.ledgers for sample in ledger.samples()]
    mode = talk.spec.reported_logprobs
    return samples if mode is None else [sample.model_copy(update={"logprobs_mode": mode.value}) for sample in samples]


def _token_warnings(talk: Conversation) -> list[str]:
    return list(dict.fromkeys(warning for branch in talk.branches for warning in branch.tokens.warnings))


def _engine_warnings(talk: Conversation) -> list[str]:
    """Lists what a trainer should know of turns that an engine has sampled."""
    spec, found = talk.spec, []
    sampling, more = spec.sampling_params, spec.sampling_params.extra().keys()
    if spec.reported_logprobs is LogprobsMode.RAW:
        other = sampling.temperature != 1 or sampling.top_p != 1 or bool(_SHAPING & more)
    else:
        # SGLang 0.5.23 gives them after the temperature, and over all ids: it narrows only what it samples from.
        other = spec.protocol is EndpointProtocol.SGLANG and (sampling.top_p != 1 or bool(_NARROWING & more))
    if talk.turns and other:
        found.append("raw_logprobs")
    if any(turn.resampled for turn in talk.measures.turns):
        found.append("turn_resampled")
    return found


def _reward(talk: Conversation, outcome: RolloutEnd) -> dict[str, Any]:
    """What the environment says that the rollout is worth; a grader, which is asked later, has the last word."""
    if talk.score is None or outcome.status is not RolloutStatus.COMPLETED:
        return {}
    return {"reward": talk.score.reward, "reward_parts": dict(talk.score.parts)}


def _report(talk: Conversation) -> EnvironmentReport | None:
    """Returns what the result says of the rollout's environment."""
    session, score, steps = talk.session, talk.score, talk.measures.steps
    if session is None:
        return None
    return EnvironmentReport(
        name=session.choice.name,
        seed=session.choice.seed,
        crash=session.environment.crash,
        steps=len(steps),
        step_rewards=[step.reward for step in steps],
        step_turns=[*talk.measures.step_turns],
        done=talk.episode_over,
        reward=None if score is None else score.reward,
        parts={} if score is None else dict(score.parts),
    )


def replay_record(claim: Claim, talk: Conversation, result: RolloutResult) -> ReplayRecord | None:
    """Makes the record of a rollout."""
    spec, session = claim.spec, talk.session
    if not spec.replay_record or not result.turns:
        return None
    tools = [] if session is None else [tool.shown for tool in session.tools.values()]
    submitted = [message.wire() for message in spec.messages]
    return ReplayRecord(
        options=_options(spec),
        given=len(submitted),
        tools_digest=definitions_digest(talk.tokens.tools),
        tools=tools if len(orjson.dumps(tools)) <= MOST_TOOLS_BYTES else [],
        by_text=talk.acts_by_text,
        journal=keep_journal(without_old_snapshots(talk.records), submitted, result),
    )


def without_old_snapshots(records: Sequence[JournalRecord]) -> list[JournalRecord]:
    """Returns the records with the last snapshots that `MOST_SNAPSHOTS` has room for; the older ones are left out."""
    left, found = MOST_SNAPSHOTS, list(records)
    for place in range(len(found) - 1, -1, -1):
        record = found[place]
        if isinstance(record, ObservationRecord) and (facts := record.environment) is not None and facts.snapshot:
            left -= len(facts.snapshot)
            if left < 0:
                found[place] = replace(record, environment=replace(facts, snapshot=None))
    return found


def _options(spec: RolloutSpec) -> dict[str, object]:
    return spec.model_dump(mode="json", include=set(KEPT_OPTIONS), exclude_defaults=True)
