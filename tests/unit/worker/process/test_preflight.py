"""A preflight tells ports that answer from ports that do not."""

from tests.support.batches import NOWHERE
from tests.support.inside_worker import InsideWorker
from tests.support.scripted_trainer import scripted_trainer

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy
from rolloutpool_worker.process.preflight import try_endpoints


async def test_any_answer_shows_that_a_port_is_reachable(inside: InsideWorker, tokenizer: ChatTokenizer) -> None:
    async with scripted_trainer(tokenizer, health=500) as trainer:
        urls = [trainer.url, NOWHERE, "http://169.254.169.254"]
        await try_endpoints(inside.services, "request", urls)
        assert (trainer.health_checks, trainer.exchanges) == (1, [])
    found = await inside.services.store.preflights.take("request")
    assert found is not None
    assert found.worker == inside.services.worker_id
    assert [(check.server_url, check.ok) for check in found.endpoints] == [
        (urls[0], True),
        (urls[1], False),
        (urls[2], False),
    ]
    assert found.endpoints[0].detail == "answered 500, without X-Turn-Key"


async def test_an_endpoint_that_names_its_answers_is_told_from_one_that_does_not(
    inside: InsideWorker, tokenizer: ChatTokenizer
) -> None:
    with serve_callback(callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer), [0]) as served:
        await try_endpoints(inside.services, "request", [served.url])
    found = await inside.services.store.preflights.take("request")
    assert found is not None
    assert [check.detail for check in found.endpoints] == ["answered 200"]
