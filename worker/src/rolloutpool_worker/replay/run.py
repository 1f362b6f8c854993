"""The replay of one rollout.

1. **Read** the journal that the result carries into a script (`recorded`), and its options into a spec. A result that
   was changed does not give its journal back; then that is the difference, and nothing is run.
2. **Run** the real agent over a real conversation, with a channel, tools and an environment that answer from the
   script. The ledger is written, echoes are verified, deltas rendered and masks planned anew; nothing is journaled.
3. **Compare** the new result with the old one (`differences`).

A rollout that did not complete is run up to where its record ends. It needs the tokenizer that the worker had, and the
definitions of its tools where a prompt is rendered here: for engines, after edits, and with a few templates.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError

from rolloutpool_common.errors import RolloutError
from rolloutpool_common.outcomes import FinishReason, RolloutEnd, RolloutStatus
from rolloutpool_common.protocol.journal import TrainerKind
from rolloutpool_common.protocol.kept_journal import ResultChanged
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.replay import (
    ReplayDifference,
    ReplayRecord,
    ReplayReport,
    definitions_digest,
)
from rolloutpool_common.protocol.result import RolloutResult, Spans
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.security.targets import Targets
from rolloutpool_common.store import Claim
from rolloutpool_worker.agents.tool_calls import AGENTS
from rolloutpool_worker.capability import PolicyParts
from rolloutpool_worker.composition import CAPABILITIES
from rolloutpool_worker.conversation.branch import RunningAttempt
from rolloutpool_worker.conversation.callback_policy import CallbackPolicy
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.conversation.journal import Journal
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.drain import Drain, RolloutStop
from rolloutpool_worker.environments import EnvironmentHost
from rolloutpool_worker.policy.asking import Asking
from rolloutpool_worker.policy.breaker import Breakers
from rolloutpool_worker.policy.endpoint import ReplyLimits
from rolloutpool_worker.policy.http1 import Http1Client
from rolloutpool_worker.policy.resolver import Resolver
from rolloutpool_worker.recorded.script import RecordEnds, RecordLacks, RecordMismatch, Script
from rolloutpool_worker.recorded.stand_ins import RecordedCallback, RecordedEnvironment, RecordedSession, RecordedTools
from rolloutpool_worker.replay.differences import differences
from rolloutpool_worker.rollout.environment import begin_session, tools_of
from rolloutpool_worker.rollout.outcome import make_result
from rolloutpool_worker.tools import TOOLS, IsolatedTools, Tool, ToolHost, ToolLimits, ToolWatch

_NOWHERE = "http://replay.invalid"
"""Stands for the endpoint, which is not asked."""
_MOST_DIFFERENCES = 20


@dataclass(frozen=True)
class Rerun:
    """A rollout that is run again: what its result says of it, and the tokenizer of here."""

    result: RolloutResult
    record: ReplayRecord
    script: Script
    spec: RolloutSpec
    tokenizer: ChatTokenizer


class Replayer:
    """Runs rollouts again, in one process and on one event loop."""

    def __init__(self, tokenizers: TokenizerCache) -> None:
        """Opens nothing; `tokenizers` loads the rollouts' own."""
        self._tokenizers = tokenizers
        self._drain = Drain()
        # Never used, but the real channels have one.
        self._client = Http1Client(Resolver(Targets.loopback()), timeout=1)
        # No limit may cut what was recorded under others.
        limits = ToolLimits(seconds=60, calls=1_000_000, arguments=10**9, result=10**9)
        self._tools = ToolHost(limits, ToolWatch(blocked_seconds=60, memory_bytes=2**40), IsolatedTools(1))
        self._environments = EnvironmentHost(seconds=60, result_bytes=10**9)

    async def run(self, result: RolloutResult, tokenizer: str | None = None) -> ReplayReport:
        """Runs a rollout again."""
        if not result.turns:
            return ReplayReport(
                uid=result.uid, same=False, lacks="nothing was sampled, so there is nothing to run again"
            )
        try:
            script = Script.read(result)
            record = result.replay
            assert record is not None
            spec = _spec(result, record, script, tokenizer)
            if AGENTS.get(spec.agent) is None:
                raise RecordLacks(f"there is no agent {spec.agent!r} here (ROLLOUTPOOL_PLUGINS names plug-ins)")
        except RecordLacks as lack:
            return ReplayReport(uid=result.uid, same=False, lacks=lack.message)
        except ResultChanged as changed:
            return ReplayReport(uid=result.uid, same=False, differences=_changes(changed))
        try:
            loaded = await self._tokenizers.get(spec.tokenizer_name, spec.tokenizer_revision)
        except RolloutError as error:
            return ReplayReport(uid=result.uid, same=False, lacks=error.message)
        ours = loaded.fingerprint.model_dump()
        notes = [
            f"{name} differs: {ours[name]} here" for name, theirs in result.tokenizer.items() if ours[name] != theirs
        ]
        again, stopped = await self._again(Rerun(result, record, script, spec, loaded), notes)
        found = [*stopped, *([] if again is None else differences(result, again))]
        return ReplayReport(
            uid=result.uid,
            same=not found,
            turns=0 if again is None else len(again.turns),
            ids=sum(len(sample.prompt_ids) + len(sample.response_ids) for sample in result.samples),
            notes=notes,
            differences=found[:_MOST_DIFFERENCES],
        )

    async def _again(self, rerun: Rerun, notes: list[str]) -> tuple[RolloutResult | None, list[ReplayDifference]]:
        """Runs the agent; returns the new result, and what has stopped the run before its end."""
        result, record, spec = rerun.result, rerun.record, rerun.spec
        claim = _claim(result, spec)
        stop, journal = RolloutStop(self._drain), Journal(None, claim, [], self._drain)
        session = self._session(rerun, claim)
        talk: Conversation | None = None
        outcome = RolloutEnd(result.status, FinishReason.ERROR)
        stopped: list[ReplayDifference] = []
        try:
            asked = claim if session is None else await begin_session(session, claim, journal, stop)
            tools = tools_of(spec, session)
            talk = self._conversation(rerun, RunningAttempt(asked, journal, stop), tools, session)
            if record.tools_digest not in ("", definitions_digest(talk.tokens.tools)):
                notes.append("the tools here are others than the worker had (ROLLOUTPOOL_PLUGINS names plug-ins)")
            agent = AGENTS.get(spec.agent)
            assert agent is not None
            outcome = RolloutEnd(RolloutStatus.COMPLETED, await agent(talk))
            await talk.ask_score()
        except RecordMismatch as error:
            stopped.append(_stop(error.what, error.recorded, error.replayed, error.turn))
        except RecordEnds as error:
            # The record of a rollout that failed, or was stopped, ends before its agent does.
            if result.status is RolloutStatus.COMPLETED:
                stopped.append(_stop("end", result.finish_reason, error.message, len(rerun.script) + 1))
        except RolloutError as error:
            if result.failure is None or result.failure.category is not error.category:
                turn = None if talk is None else talk.turn
                stopped.append(_stop("end", result.finish_reason, f"{error.category}: {error.message}", turn))
        # An agent of a plug-in may raise anything.
        except Exception as error:
            turn = None if talk is None else talk.turn
            stopped.append(_stop("end", result.finish_reason, f"{type(error).__name__}: {error}", turn))
        finally:
            if session is not None:
                await session.close()
        if talk is None:
            return None, stopped
        fingerprint = rerun.tokenizer.fingerprint.model_dump()
        again = await asyncio.to_thread(make_result, claim, outcome, talk, tokenizer=fingerprint, spans=Spans())
        return again, stopped

    def _session(self, rerun: Rerun, claim: Claim) -> RecordedSession | None:
        choice = rerun.spec.environment
        if choice is None:
            return None
        environment = RecordedEnvironment(rerun.script, rerun.record, rerun.result.environment)
        return RecordedSession(rerun.script, environment, choice, claim.uid, claim.attempt, self._environments)

    def _conversation(
        self, rerun: Rerun, attempt: RunningAttempt, tools: dict[str, Tool], session: RecordedSession | None
    ) -> Conversation:
        script, tokenizer, claim, spec = rerun.script, rerun.tokenizer, attempt.claim, attempt.claim.spec
        asking = Asking(
            self._client,
            spec,
            uid=claim.uid,
            attempt=claim.attempt,
            attempts=1,
            reply_limits=ReplyLimits(1),
            pause=self._drain.pause,
            breakers=Breakers(),
        )
        callable_tools = [tool.shown for tool in tools.values()]
        begun = (one.replayed_beginning(rerun.result, script) for one in CAPABILITIES)
        beginning = next((found for found in begun if found is not None), None)
        parts = PolicyParts(
            claim, spec, asking, tokenizer, callable_tools, script, 1 if beginning is None else beginning.turn
        )
        policy = next((own for one in CAPABILITIES if (own := one.replayed(parts)) is not None), None)
        if policy is None:
            shown = [tool.shown for tool in TOOLS.values()] if session is None else callable_tools
            # Nothing is known of the trainer. What it says of itself is not recorded, and decides only which mask is
            # tried first.
            track = partial(TokenTrack, spec, tokenizer, shown, TrainerKind.UNKNOWN)
            policy = CallbackPolicy(RecordedCallback(script, asking), track)
        return Conversation(
            attempt,
            policy=policy,
            tools=RecordedTools(script, tools, lenient=spec.v1, host=self._tools),
            session=session,
            beginning=beginning,
        )


def _spec(result: RolloutResult, record: ReplayRecord, script: Script, tokenizer: str | None) -> RolloutSpec:
    fields: dict[str, Any] = {"sampling_params": {}, **record.options}
    if tokenizer is not None:
        fields |= {"tokenizer_name": tokenizer, "tokenizer_revision": None}
    fields |= {
        "rollout_id": result.rollout_id,
        "server_url": _NOWHERE,
        "messages": script.given,
        "metadata": result.metadata,
        "group": result.group,
        "labels": result.labels,
    }
    try:
        return RolloutSpec.model_validate(fields)
    except ValidationError as error:
        names = sorted({".".join(map(str, fault["loc"])) for fault in error.errors(include_input=False)})
        raise RecordLacks(f"its options cannot be read: {', '.join(names)}") from None


def _claim(result: RolloutResult, spec: RolloutSpec) -> Claim:
    return Claim(
        uid=result.uid,
        batch_id=result.batch_id,
        index=result.index,
        worker_id="replay",
        role=WorkerRole.SHARED,
        token="",
        attempt=result.attempt,
        crashes=0,
        retries=0,
        deferrals=0,
        journal_length=0,
        clean=True,
        group=result.group,
        deadline_in_s=None,
        queued_ms=0.0,
        spec=spec,
        more_waiting=False,
    )


def _changes(changed: ResultChanged) -> list[ReplayDifference]:
    """Names the parts of a result that are not what its worker wrote."""
    return [
        ReplayDifference(
            what=part,
            recorded="as its worker wrote it",
            replayed="changed since",
            sample=int(place) if kind == "sample" and place else None,
        )
        for part in changed.parts or ("replay.journal",)
        for kind, _, place in [part.partition(" ")]
    ]


def _stop(what: str, recorded: object, replayed: str, turn: int | None) -> ReplayDifference:
    return ReplayDifference(what=what, recorded=str(recorded), replayed=replayed[:300], turn=turn)
