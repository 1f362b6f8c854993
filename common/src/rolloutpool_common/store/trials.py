"""Trials: how a suspect is found guilty or cleared, in few steps and without harm to others.

A rollout is a suspect when two workers have died while they had it and it made no progress in between. Most suspects
are innocent: a worker that dies takes some hundred rollouts with it. They are tried in isolated workers, which run
nothing else (`worker/process/trial.py`), in cohorts that halve:

1. A suspect waits in `rp:suspects` and not in its outbox, so no ticket brings it to a shared worker. Each beat's answer
   tells the workers how many wait. A worker without an isolated one asks whether to start one (`may_start`).
2. The isolated worker takes a cohort (`take`): the suspect that has waited longest, and others of the same *company*.
   The company says how many may be tried together: the suspects, divided by the workers that can try them, at most
   `MOST_COMPANY`. A rollout whose turn must not be asked again has company 1: it is tried alone, because a neighbour
   that kills their worker would leave its turn in doubt.
3. A suspect that makes progress (one more journal record) is cleared: it goes back to the queue at its next border.
4. If the isolated worker dies with m suspects that were not cleared, one of them may be the cause. The company of each
   becomes m / 2, rounded up, and they wait again, in their old places.
5. If it dies with a suspect that was tried without company, the suspect gets a *strike*. The second strike proves it:
   the rollout fails as poison (`reconciliation.py`). One strike could be chance, because machines die as well.
6. A death whose cause is known and came from outside (`ProcessEnd`) changes none of this.

Example: 128 suspects, one poison, two workers. Company 64: one cohort is cleared, the other dies. Company 32: one is
cleared, one dies; then 16, 8, 4 and 2. Now the poison is tried alone, and gets its two strikes. Eight deaths, and 127
innocent rollouts have lost nothing but time.
"""

from collections.abc import Sequence

from rolloutpool_common.store.connection import Connection

MOST_COMPANY = 64
"""Most suspects that are tried together. With more, one death would hold up too many others."""
START_MS = 30_000
"""How long the start of an isolated worker may take; after that another one is started in its place."""


class Trials:
    """The trials of one store's suspects."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def may_start(self, worker_id: str) -> bool:
        """Tells whether a worker should start an isolated one now: suspects wait, and not enough are being started."""
        return bool(await self._connection.script("trial_place", worker_id, MOST_COMPANY, START_MS))

    async def take(
        self, worker_id: str, parent_id: str, tokens: Sequence[str], *, company_first: bool
    ) -> list[tuple[str, str]]:
        """Claims the next cohort for an isolated worker."""
        taken = await self._connection.script("trial", worker_id, parent_id, MOST_COMPANY, int(company_first), *tokens)
        return [(uid.decode(), token.decode()) for uid, token in taken]
