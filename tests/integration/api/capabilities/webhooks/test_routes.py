"""What a webhook has not taken is pushed again."""

from tests.support.api_requests import batch
from tests.support.inside_api import client_of, running_api
from tests.support.scripted_worker import ScriptedWorker
from tests.support.secrets import secrets_file

from rolloutpool_common.capabilities.webhooks.pushes import Pushes
from rolloutpool_common.store import Store


async def test_what_a_webhook_has_not_taken_is_pushed_again_on_request(
    redis_url: str, store: Store, worker: ScriptedWorker
) -> None:
    delivery = {"callback_url": "http://127.0.0.1:9/hook", "secret": "long enough"}
    async with running_api(redis_url, secrets_file=secrets_file()) as api, client_of(api) as client:
        accepted = (await client.post("/v1/batches", json=batch(2, delivery=delivery))).json()
        batch_id, (first, _) = accepted["batch_id"], accepted["rollouts"]
        for uid in accepted["rollouts"]:
            await worker.end(uid)
        pushes = {push.uid: push for push in await Pushes(store).take(9, lease_s=60)}
        await Pushes(store).settle(pushes[first], "dead")
        assert (await client.get(f"/v1/batches/{batch_id}")).json()["delivery"] == {"dead": 1, "pending": 1}
        answer = await client.post(f"/v1/batches/{batch_id}/pushes/retry")
        assert (answer.status_code, answer.json()) == (200, {"batch_id": batch_id, "due": 2})
        assert (await client.get(f"/v1/batches/{batch_id}")).json()["delivery"] == {"dead": 0, "pending": 2}
        unknown = await client.post(f"/v1/batches/b{'0' * 32}/pushes/retry")
        assert unknown.status_code == 404
