"""`purge-owner` takes away all that one owner has, and nothing of anybody else."""

import asyncio

import pytest
import redis
from tests.support.api_requests import batch
from tests.support.batches import new_batch
from tests.support.inside_api import client_of, running_api
from tests.support.scripted_worker import ScriptedWorker, plain_result
from typer.testing import CliRunner, Result

from rolloutpool_common.security.api_keys import KeyScope, make_key
from rolloutpool_common.store import ClaimLost, Store
from rolloutpool_trainer.cli import app

BOTH = [KeyScope.SUBMIT, KeyScope.READ]
(ANN, ann), (BOB, bob), (BOSS, boss) = make_key("ann", BOTH), make_key("bob", BOTH), make_key("boss", [KeyScope.ADMIN])
ENTRIES = ",".join(entry.entry() for entry in (ann, bob, boss))


@pytest.fixture
async def store(worker: ScriptedWorker) -> Store:
    return worker.store


async def purge(url: str, key: str, owner: str = "ann") -> Result:
    arguments = ["purge-owner", owner, "--url", url, "--api-key", key, "--yes"]
    return await asyncio.to_thread(CliRunner().invoke, app, arguments)


def kept(redis_url: str, batch_id: str) -> list[str]:
    """The keys whose name, members or values name a batch."""
    with redis.Redis.from_url(redis_url) as raw:
        everything = {key: str(raw.dump(key)) for key in raw.scan_iter(count=1000)}
    return [key.decode() for key, value in everything.items() if batch_id in f"{key!r} {value}"]


async def test_an_owner_is_purged_and_another_one_is_not(redis_url: str, worker: ScriptedWorker, store: Store) -> None:
    async with running_api(redis_url, api_keys_text=ENTRIES) as api, client_of(api) as client:

        async def submit(key: str, name: str) -> list[str]:
            body = batch()
            for index, rollout in enumerate(body["rollouts"]):
                rollout["rollout_id"] = f"{name}-{index}"
            answer = await client.post("/v1/batches", json=body, headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == 202, answer.text
            rollouts: list[str] = answer.json()["rollouts"]
            return rollouts

        ended, waiting, running, others = [
            await submit(key, name) for key, name in ((ANN, "e"), (ANN, "w"), (ANN, "r"), (BOB, "o"))
        ]
        alone = (await store.batches.submit(new_batch(1, owner="ann", v1=True))).batch_id
        for uid in ended:
            await worker.end(uid)
        held = await worker.claim(running[0])
        refused = await purge(api.url, ANN)
        assert refused.exit_code == 1
        assert "admin" in refused.stderr
        # As a script says whose variable is not set.
        nobody = await purge(api.url, BOSS, "")
        assert nobody.exit_code == 1
        assert "query.owner" in nobody.stderr
        done = await purge(api.url, BOSS)
        assert done.exit_code == 0, done.output
        assert "purged 4 batches of ann" in done.stdout
        # The worker that has one in hand hears of it late, and leaves nothing behind.
        with pytest.raises(ClaimLost):
            await store.rollouts.finish(held, plain_result(held))
        for batch_id in {uid.partition("-")[0] for uid in (*ended, *waiting, *running, f"{alone}-0")}:
            assert kept(redis_url, batch_id) == []
        left = await client.get("/v1/batches", headers={"Authorization": f"Bearer {BOSS}"})
        assert [one["batch_id"] for one in left.json()["batches"]] == [others[0].partition("-")[0]]
