"""A worker that is declared dead while it works: another process takes its place, and no work is left nowhere."""

from tests.support.pool import opened_pool
from tests.support.redis_server import running_redis
from tests.support.waiting import until
from tests.support.worker_process import LONGEST_WAIT, started_worker

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_trainer.endpoint.app import CallbackApp
from rolloutpool_trainer.endpoint.server import serve_callback

ROLLOUTS = 120


async def test_fresh_work_at_a_worker_that_was_declared_dead_is_run(policy: CallbackApp) -> None:
    """With one of the workers condemned by hand, 120 of 3,000 fresh rollouts were in no queue for ever."""
    with (
        running_redis() as server,
        serve_callback(policy, [0]) as trainer,
        started_worker(server.url, arguments=("--processes", "2")),
    ):
        async with opened_pool(server.url) as pool, pool.reconciled():

            async def both() -> set[str]:
                known = {worker.worker_id for worker in await pool.store.workers.known()}
                return known if len(known) == 2 else set()

            condemned = sorted(await until(both, LONGEST_WAIT))[0]
            uids = await pool.submit(ROLLOUTS, shared={"server_url": trainer.url, "idempotent": True})
            # It lives, and takes tickets until it has noticed.
            assert await pool.store.workers.condemn(condemned)

            results = [await pool.result(uid, LONGEST_WAIT) for uid in uids]
            assert {result.status for result in results} == {RolloutStatus.COMPLETED}
            again = await until(both, LONGEST_WAIT)
            assert condemned not in again
