"""One attempt at one claimed rollout: run it, and carry out what is decided about its end.

Before it, the tokenizer was loaded and the rollout claimed (`ticket`). Each write of an attempt carries the claim's
token, and is refused where Redis has another one.

1. **Run.** The agent talks to the policy and calls tools; each step is in the journal before the next one begins. The
   rollout's deadline bounds this part, and the API can cancel it. The session of its environment, if it has one, is
   opened before the agent begins, and closed after this part, however it ends (`rollout.environment`).
2. **Attribute.** Every error on the way becomes a result with one failure, except those that say where the rollout goes
   (`StoppedAtBorder`, `TrainerDown`, `ClaimLost`, `StoreError`, cancellation). A long result is made in a thread. The
   deadline does not bound that: a rollout whose agent has ended in time has completed.
3. **Capabilities** (`capability`) that the rollout uses go on with it. An attempt at one in a stage begins here.
4. **Decide** (`decision`): finish, requeue, defer, release or drop. Neither deadline nor API interrupts this part. If
   the store refuses or the process shuts down meanwhile, that is a new ending, and the table is asked again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from rolloutpool_common.errors import (
    RequestFault,
    ResultQuarantined,
    RolloutError,
    TrainerUnreachable,
    WorkerFault,
)
from rolloutpool_common.outcomes import Failure, FinishReason, RolloutEnd, RolloutStatus
from rolloutpool_common.process import failpoints
from rolloutpool_common.process.logs import log_event
from rolloutpool_common.protocol.journal import JournalRecord, RecordUnknown
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.result import RolloutResult, Spans
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.store import Claim, ClaimLost, StoreError
from rolloutpool_worker.agents.tool_calls import AGENTS, Agent, begun, reason_of
from rolloutpool_worker.capability import Ending
from rolloutpool_worker.conversation.beginning import Beginning
from rolloutpool_worker.conversation.branch import Policy, RunningAttempt
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.conversation.journal import Journal
from rolloutpool_worker.conversation.off_loop import off_loop
from rolloutpool_worker.conversation.store_retry import retry_store
from rolloutpool_worker.drain import EndedAtBorder, RolloutStop, StoppedAtBorder, is_cancelled
from rolloutpool_worker.ending import Action, Decision, GoesElsewhere, TicketOutcome
from rolloutpool_worker.environments import EnvironmentFull, SessionLife
from rolloutpool_worker.policy.asking import Asking, ungated
from rolloutpool_worker.policy.breaker import TrainerDown, waited_s
from rolloutpool_worker.policy.endpoint import ReplyLimits
from rolloutpool_worker.recorded.stand_ins import RecordedTools
from rolloutpool_worker.rollout.admission import check_declared, check_result
from rolloutpool_worker.rollout.attempt_log import log_end, log_requeue
from rolloutpool_worker.rollout.decision import AttemptState, decide
from rolloutpool_worker.rollout.deferral import NeedsMissing, lacks, note_deferral, note_setback
from rolloutpool_worker.rollout.environment import begin_session, close_session, session_of, tools_of
from rolloutpool_worker.rollout.outcome import make_result
from rolloutpool_worker.rollout.policies import Policies
from rolloutpool_worker.rollout.services import Services
from rolloutpool_worker.rollout.talk import RolloutTalk
from rolloutpool_worker.tools import ToolRunner

_log = logging.getLogger(__name__)

T = TypeVar("T")

ELSEWHERE = (
    *(StoppedAtBorder, TrainerDown, EnvironmentFull, GoesElsewhere),
    *(ClaimLost, StoreError, asyncio.CancelledError),
)
"""What says where the rollout goes, without a result."""


class Attempt:
    """One attempt at one claimed rollout."""

    def __init__(self, services: Services, claim: Claim) -> None:
        self._services = services
        self._claim = claim
        self._capabilities = services.chosen(claim)
        self._stop = RolloutStop(services.drain)
        self.trace = services.trace_of(claim)
        self._waits = services.waits.of(claim.batch_id, claim.uid, claim.spec.server_url, claim.attempt)
        self._waits.tried = claim.tried
        gates = (one.gate(claim, self._stop, self._waits) for one in self._capabilities)
        self._gate = next((gate for gate in gates if gate is not None), None)
        self._journal: Journal | None = None
        self._conversation: Conversation | None = None
        self._session: SessionLife | None = None
        self._fingerprint: dict[str, str] = {}
        self.failure: Failure | None = None
        """Why the rollout failed, once it has."""
        self._vocab_size = 0
        self._tokenizer_ms = 0.0
        self._start = time.perf_counter()

    def close(self) -> None:
        """Forgets what stood before its model calls."""
        if self._gate is not None:
            self._gate.close()

    @property
    def clean(self) -> bool:
        """Whether no model call can be unanswered."""
        state = self._state()
        return state.certain and not state.calling

    async def run(self) -> TicketOutcome:
        """Runs the rollout to an ending, and carries out what the table says about it."""
        services = self._services
        ended: RolloutResult | BaseException | None = lacks(self._claim.spec, services.worker_id)
        if ended is None and self._claim.stage is None:
            try:
                await self._restart_if_ambiguous()
                with services.claims.running(self._claim, self._verify):
                    ended = await self._to_result(await self._to_outcome())
            except ELSEWHERE as why:
                ended = why
            # Before the rollout can go on elsewhere.
            ended = await close_session(self._session, ended)
        if self._capabilities:
            ended = await self._to_capabilities(ended)
        if ended is None:
            ended = NeedsMissing(f"worker {services.worker_id} knows no stage {self._claim.stage!r}")
        ending: RolloutResult | BaseException = ended
        # A refusal of the store leads to a drop, and a drop writes nothing, so this loop ends.
        while True:
            decision = decide(
                ending,
                self._claim,
                self._state(),
                infra_retries=services.settings.infra_retries,
                draining=services.drain.begun,
                capabilities=self._capabilities,
            )
            try:
                await self._carry_out(decision, ending)
                return decision.outcome
            except (ClaimLost, StoreError, asyncio.CancelledError) as error:
                ending = error

    async def _to_capabilities(self, ended: Ending | None) -> Ending | None:
        """Has the capabilities of the rollout go on with it, one after the other."""
        talk = RolloutTalk(self._services, self._claim, self._attachments)
        for capability in self._capabilities:
            ended = await capability.at_end(talk, ended)
        return ended

    def _attachments(self, ended: RolloutResult) -> bytes:
        """Returns what is kept beside a result; empty where it delivers no ids, or this attempt has sampled none."""
        beside = None if self._conversation is None else self._conversation.policy.beside
        return b"" if beside is None or ended.attachments is None else beside.record()

    async def _restart_if_ambiguous(self) -> None:
        """Forgets the journal where the turn in doubt must not be asked again, but the whole rollout may be."""
        claim = self._claim
        if not claim.clean and claim.spec.restartable and not claim.spec.may_repeat:
            self._claim = await self._retry_store(lambda: self._services.store.rollouts.restart(claim))

    async def _carry_out(self, decision: Decision, ending: RolloutResult | BaseException) -> None:
        """Writes to the store what was decided. Every one of these writes is harmless when it arrives twice."""
        claim, rollouts, clean = self._claim, self._services.store.rollouts, decision.clean
        match decision.action, ending:
            case Action.FINISH, RolloutResult() as result:
                attachments = self._attachments(result)
                await self._waits.ended()
                await self._retry_store(lambda: rollouts.finish(claim, result, attachments=attachments))
                failpoints.hit("worker.finish_before_ack")
                versions = [turn.policy_version for turn in result.turns]
                self.failure = result.failure
                self.trace.rollout(result)
                log_end(result, self._services.versions.lag(claim.spec.server_url, versions))
            case Action.REQUEUE, RolloutResult() as result:
                delay_s, failure = decision.delay_s, result.failure
                why = "" if failure is None else f"{failure.category}: {failure.message}"
                await note_deferral(self._waits, failure, claim, delay_s)
                await self._retry_store(
                    lambda: rollouts.give_back(claim, clean=clean, counter="retries", delay_s=delay_s, why=why)
                )
                log_requeue(decision, why)
            case Action.DEFER, cause:
                delay_s, why, counter = decision.delay_s, str(cause), decision.counter
                await note_deferral(self._waits, cause, claim, delay_s)
                await self._retry_store(
                    lambda: rollouts.give_back(claim, clean=clean, counter=counter, delay_s=delay_s, why=why)
                )
                log_requeue(decision, why)
            case Action.RESTART, cause:
                why, counter = str(cause), decision.counter
                await self._retry_store(lambda: rollouts.restart(claim))
                await self._retry_store(
                    lambda: rollouts.give_back(claim, clean=True, counter=counter, delay_s=0.0, why=why)
                )
                log_requeue(decision, why)
            case Action.RELEASE, _:
                await self._retry_store(lambda: rollouts.release(claim, clean=clean, tried=decision.tried))
                log_requeue(decision, type(ending).__name__)
            # The others are ordinary endings. This one leaves a claim that the reconciler has to find.
            case Action.DROP, StoreError() as error if decision.outcome is TicketOutcome.STORE:
                log_event(_log, logging.ERROR, "rollout left to the reconciler", error=error.message)

    async def _retry_store(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retry_store(self._services.drain, self._claim.uid, call)

    def _state(self) -> AttemptState:
        talk, final = self._conversation, self._session is not None and self._session.final
        if talk is None:
            return AttemptState(certain=self._claim.clean, calling=False, final=final, tried=self._waits.tried)
        return AttemptState(certain=talk.all_certain, calling=talk.in_flight, final=final, tried=self._waits.tried)

    async def _verify(self) -> None:
        """Makes sure that a Redis which was started again has the claim and its journal; raises `ClaimLost`."""
        if self._journal is not None:
            await self._journal.resend()
        # This attempt has not read the journal yet: None leaves the stored records as they are.
        elif not await self._services.store.rollouts.restore(self._claim, None, turns=0):
            raise ClaimLost

    async def _to_outcome(self) -> RolloutEnd:
        """Runs the agent within the deadline; returns how it ended, with one failure for whatever went wrong."""
        try:
            async with asyncio.timeout(self._claim.deadline_in_s) as deadline:
                try:
                    agent, talk = await self._open()
                    try:
                        name = self._claim.spec.agent
                        reason = reason_of(name, await begun(name, agent, talk))
                        if self._gate is not None:
                            await self._gate.at_end()
                        if talk.session is not None:
                            await talk.ask_score()
                    finally:
                        # Also after a failure: what an echo has shown of the trainer is true for other rollouts.
                        self._services.kinds.learned(talk.spec, talk.tokens.found_kind)
                    return RolloutEnd(RolloutStatus.COMPLETED, reason)
                except asyncio.CancelledError:
                    # API and drain cancel this task in the same way. What was sampled until the deadline is delivered.
                    if not deadline.expired():
                        raise
                    await note_setback(self._waits, self._services.store, self._claim, self._conversation)
                    return RolloutEnd(RolloutStatus.EXPIRED, FinishReason.DEADLINE)
        except TrainerDown as down:
            # A trainer's port that has been down for longer than the setting allows is a failure.
            if waited_s(self._claim.deferrals) < self._services.settings.trainer_down_timeout:
                raise
            return RolloutEnd.failed(TrainerUnreachable(down.message, retryable=False).failure(self._turn()))
        except RolloutError as error:
            return RolloutEnd.failed(error.failure(self._turn()))
        except EndedAtBorder as ended:
            return ended.end
        except (StoppedAtBorder, EnvironmentFull, GoesElsewhere, StoreError):
            raise
        except (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            # A defect in a plug-in or in this code. It ends this rollout and no other, also where it is an exception
            # that would end the event loop (SystemExit), or look like a cancellation that nobody asked for.
            return self._defect(error)

    async def _to_result(self, outcome: RolloutEnd) -> RolloutResult:
        """Makes the result, in a thread where it is long; one that contradicts itself is quarantined."""
        try:
            return await self._off_loop(self._admitted, outcome)
        except ResultQuarantined as error:
            return await self._quarantine(error)
        except RolloutError as error:
            return await self._off_loop(self._result, RolloutEnd.failed(error.failure(self._turn())))
        except Exception as error:
            return await self._off_loop(self._result, self._defect(error))

    def _defect(self, error: BaseException) -> RolloutEnd:
        _log.error("unexpected error", exc_info=error)
        return RolloutEnd.failed(WorkerFault.of(error).failure(self._turn()))

    async def _open(self) -> tuple[Agent, Conversation]:
        """Makes the conversation, and finds the agent that leads it."""
        claim, services, spec = self._claim, self._services, self._claim.spec
        agent = next((own for one in self._capabilities if (own := one.agent())), AGENTS.get(spec.agent))
        if agent is None:
            raise RequestFault(f"no agent {spec.agent!r} on this worker; it has {AGENTS.names()}")
        tokenizer = None if spec.messages_only else await self._load_tokenizer()
        # A first attempt has no journal, so it saves the round trip.
        records = await self._read_journal() if claim.journal_length else []
        # With its first record a suspect has made progress: it goes back to the queue from its next border. But a
        # rollout that is isolated for its lifetime crash count (then `crashes` is 0) stays isolated after one turn.
        after_write = self._stop.clear_suspect if services.role is WorkerRole.ISOLATED and claim.crashes > 0 else None
        journal = self._journal = Journal(services.store, claim, records, services.drain, after_write=after_write)
        beginning = await self._recorded_beginning() if self._capabilities else None
        session = self._session = session_of(claim, services.environments, beginning)
        claim = claim if session is None else await begin_session(session, claim, journal, self._stop, beginning)
        spec = claim.spec
        tools = tools_of(spec, session)

        policies = Policies(services, claim, self._asking(spec), tokenizer, tools, beginning)

        async def policy_for(
            shown: Sequence[dict[str, Any]] | None, sampling: Mapping[str, Any] | None = None
        ) -> Policy:
            return await self._retry_store(lambda: policies.open(shown, sampling))

        policy = await policy_for(None)
        runner: Callable[..., ToolRunner] = (
            ToolRunner if beginning is None else partial(RecordedTools, beginning.script)
        )
        talk = self._conversation = Conversation(
            RunningAttempt(claim, journal, self._stop, self.trace),
            policy=policy,
            policy_for=policy_for,
            tools=runner(tools, lenient=spec.v1, host=services.tool_host, on_error=spec.on_tool_error),
            session=session,
            beginning=beginning,
        )
        if self._gate is not None:
            self._gate.guard(talk, journal)
        return agent, talk

    async def _recorded_beginning(self) -> Beginning | None:
        """Asks the capabilities for turns of this rollout that are recorded."""
        for capability in self._capabilities:
            if (found := await self._retry_store(partial(capability.beginning, self._claim))) is not None:
                return found
        return None

    def _asking(self, spec: RolloutSpec) -> Asking:
        services, settings = self._services, self._services.settings
        return Asking(
            services.turns,
            services.store.with_secrets(spec),
            uid=self._claim.uid,
            attempt=self._claim.attempt,
            attempts=settings.trainer_attempts,
            reply_limits=ReplyLimits(int(settings.max_reply_mb * 1_000_000), settings.max_reply_objects),
            pause=self._stop.pause,
            breakers=services.breakers,
            waits=self._waits,
            trace=self.trace,
            before_call=ungated if self._gate is None else self._gate.before_call,
        )

    async def _load_tokenizer(self) -> ChatTokenizer:
        spec = self._claim.spec
        tokenizer = await self._services.tokenizers.get(spec.tokenizer_name, spec.tokenizer_revision)
        self._tokenizer_ms = (time.perf_counter() - self._start) * 1000
        self._fingerprint, self._vocab_size = tokenizer.fingerprint.model_dump(), tokenizer.vocab_size
        check_declared(spec, tokenizer.name, self._fingerprint)
        return tokenizer

    async def _off_loop(self, make: Callable[[RolloutEnd], RolloutResult], outcome: RolloutEnd) -> RolloutResult:
        talk = self._conversation
        # What it costs, in ids to tokenise; each drift may have made a sample with a prompt of its own. To compress the
        # journal costs three times as much as all the rest.
        size = 0 if talk is None else talk.ids * (1 + sum(talk.measures.drift.values()))
        return await off_loop(size if self._claim.spec.replay_record else size // 4, make, outcome)

    def _admitted(self, outcome: RolloutEnd) -> RolloutResult:
        result, talk, spec = self._result(outcome), self._conversation, self._claim.spec
        if talk is not None and outcome.status is RolloutStatus.COMPLETED:
            untrained = spec.allow_untrained or spec.v1
            check_result(result, talk.ledgers, vocab_size=self._vocab_size, allow_untrained=untrained)
        return result

    async def _quarantine(self, error: ResultQuarantined) -> RolloutResult:
        """Keeps a result that contradicts itself as evidence; returns a failed result without any data."""
        kept = await self._off_loop(self._result, RolloutEnd.failed(error.failure(self._turn())))
        log_event(_log, logging.ERROR, "rollout quarantined", error=error.message)
        await self._retry_store(lambda: self._services.store.rollouts.keep_evidence(self._claim, kept))
        # The journal has the data too, and cannot be read without them.
        left_out: dict[str, Any] = {
            "samples": [],
            "messages": [],
            "alignment": None,
            "attachments": None,
            "replay": None,
        }
        return kept.model_copy(update=left_out)

    async def _read_journal(self) -> list[JournalRecord]:
        try:
            return await self._retry_store(lambda: self._services.store.rollouts.read_journal(self._claim.uid))
        except RecordUnknown as error:
            # A worker of the release that wrote it goes on from there.
            raise NeedsMissing(f"worker {self._services.worker_id} cannot go on with it: {error.message}") from None

    def _turn(self) -> int | None:
        return None if self._conversation is None else self._conversation.turn

    def _result(self, outcome: RolloutEnd) -> RolloutResult:
        result = make_result(
            self._claim,
            outcome,
            self._conversation,
            tokenizer=self._fingerprint,
            spans=Spans(tokenizer_ms=self._tokenizer_ms, total_ms=(time.perf_counter() - self._start) * 1000),
            waited_for=self._waits.now if outcome.status is RolloutStatus.EXPIRED else None,
        )
        return result if self._gate is None else self._gate.complete(result)
