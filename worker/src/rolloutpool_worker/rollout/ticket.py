"""One ticket: its rollout is claimed, one attempt is made at it, and no claim is left behind.

1. **Load.** The rollout's tokenizer is loaded before the claim (`tokenizer_loads`).
2. **Claim.** The claim script gives the rollout to this worker, or says why the ticket is void: it may come twice, or
   late. A claim has a random token, the *fence*: every later write carries it, and the script refuses a write whose
   token is not the one that Redis has. So a worker that was declared dead by mistake can do no harm.
3. **Attempt** (`attempt`).
4. **Abandon.** If the claim is still this worker's after that, because of a defect or an unexpected cancellation, it is
   given up, so that the rollout is queued again. What even this misses, `process.worker` finds within seconds.
"""

import logging
from typing import NamedTuple

from rolloutpool_common.outcomes import Failure
from rolloutpool_common.process.logs import log_event
from rolloutpool_common.store import ClaimRefused, StoreError
from rolloutpool_worker.conversation.store_retry import retry_store
from rolloutpool_worker.ending import TicketOutcome
from rolloutpool_worker.rollout.attempt import Attempt
from rolloutpool_worker.rollout.attempt_log import log_start
from rolloutpool_worker.rollout.services import Services

_log = logging.getLogger(__name__)

ABANDONED_SECONDS = 2.0
"""Until an abandoned rollout may run again: what happened once may happen at each attempt, and each costs a replay."""
_UNSETTLED = frozenset({TicketOutcome.STOPPED, TicketOutcome.STORE})
"""Outcomes after which nothing was written. If this worker still has the claim then, nothing runs it."""


class TicketEnd(NamedTuple):
    """Holds what became of one rollout of a ticket."""

    outcome: TicketOutcome
    failure: Failure | None = None
    """Why the rollout failed for good."""


async def run_rollout(services: Services, uid: str, *, token: str | None = None) -> TicketEnd:
    """Runs one rollout if this worker gets the claim."""
    trainer = ""
    if token is None:
        trainer = await retry_store(services.drain, uid, lambda: services.tokenizer_loads.before_claim(uid))
        # Until this breaker lets a call through, the rollout waits in the queue, and is asked of nobody.
        trainer = trainer if services.breakers.is_closed(trainer) else ""
        if services.drain.begun:
            return TicketEnd(TicketOutcome.DRAINING)
    # The token is in the register before Redis can have it. Otherwise the beat could find a claim whose answer is still
    # on its way, and give it back as one that nothing here runs.
    with services.claims.claiming(token) as held:
        attempt: Attempt | None = None
        settled = False
        try:
            claim = await retry_store(
                services.drain,
                uid,
                # Each try has the same token, so that the script knows a claim again whose answer was lost.
                lambda: services.store.rollouts.claim(
                    uid, services.worker_id, services.role, token=held, trainer=trainer
                ),
            )
            if isinstance(claim, ClaimRefused):
                settled = True
                return TicketEnd(TicketOutcome(claim.value))
            services.more_waiting(claim)
            log_start(claim)
            attempt = Attempt(services, claim)
            try:
                outcome = await attempt.run()
            finally:
                attempt.close()
            attempt.trace.attempt(outcome)
            settled = outcome not in _UNSETTLED
            return TicketEnd(outcome, attempt.failure)
        finally:
            if not settled:
                # The claim may have arrived although its answer did not. Without that answer nothing is known about
                # earlier attempts' model calls, so the rollout is not called clean then.
                await _abandon(services, uid, held, clean=attempt is not None and attempt.clean)


async def _abandon(services: Services, uid: str, token: str, *, clean: bool) -> None:
    """Queues a rollout again whose ticket ends here without a result; changes nothing where the claim is not ours."""
    try:
        if await services.store.rollouts.abandon(uid, token, services.role, clean=clean, delay_s=ABANDONED_SECONDS):
            log_event(_log, logging.ERROR, "rollout abandoned", rollout_uid=uid)
    except StoreError as error:
        log_event(_log, logging.WARNING, "rollout not abandoned yet", rollout_uid=uid, error=error.message)
