"""One call to a trainer: each way in which it can fail is one error, which says whether to ask again."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import orjson
import pytest
from tests.support.batches import NOWHERE, claim, submit
from tests.support.raw_server import answering
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import Step, body, close, hang, status
from tests.support.turn_clients import KINDS, asking
from tests.support.waiting import eventually

from rolloutpool_common.errors import RolloutError, TrainerProtocolError, TrainerStatusError, TrainerUnreachable
from rolloutpool_common.process.metrics import IN_MODEL_CALL, take_rows
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.security.targets import Targets
from rolloutpool_common.store import Store
from rolloutpool_worker.policy.breaker import FAILURES, Breakers, TrainerDown
from rolloutpool_worker.policy.endpoint import ReplyLimits, TrainerEndpoint, origin_of
from rolloutpool_worker.policy.idempotence import IdempotentTrainers
from rolloutpool_worker.policy.resolver import Resolver
from rolloutpool_worker.policy.turn_client import TurnClient

WHERE, PATH = "turn 1", "/v1/chat/completions"
LARGEST = ReplyLimits(1000)


@pytest.fixture(params=KINDS)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[TurnClient]:
    async with asking(request.param, Resolver(Targets.loopback()), timeout=1.0) as made:
        yield made


async def spec_of(store: Store, url: str, **options: Any) -> RolloutSpec:
    """The spec of a rollout for this trainer."""
    (uid,) = await submit(store, [{"server_url": url, **options}])
    return (await claim(store, uid)).spec


@pytest.mark.parametrize(
    ("step", "error", "safe", "if_idempotent"),
    [
        (status(400), TrainerStatusError, False, False),
        (status(429), TrainerStatusError, True, True),
        (status(503), TrainerStatusError, True, True),
        # A gateway that timed out does not know whether the policy sampled.
        (status(504), TrainerStatusError, False, True),
        (close(), TrainerUnreachable, False, True),
        (hang(), TrainerUnreachable, False, True),
        (body(b"x" * (LARGEST.size + 1)), TrainerProtocolError, False, False),
        # A gateway's page, of which nobody knows whether the trainer was asked.
        (body(b"  <html>502 Bad Gateway</html>"), TrainerProtocolError, False, True),
        (body(b""), TrainerProtocolError, False, True),
    ],
    ids=["400", "429", "503", "504", "hangs up", "hangs", "too large", "a page", "empty"],
)
@pytest.mark.parametrize("idempotent", [False, True])
async def test_an_error_says_whether_the_turn_may_be_asked_again(
    store: Store,
    client: TurnClient,
    tokenizer: ChatTokenizer,
    step: Step,
    error: type[RolloutError],
    safe: bool,
    if_idempotent: bool,
    idempotent: bool,
) -> None:
    async with scripted_trainer(tokenizer, step) as trainer:
        spec = await spec_of(store, trainer.url, idempotent=idempotent)
        endpoint = TrainerEndpoint(client, Breakers(), spec, reply_limits=LARGEST)
        with pytest.raises(error) as raised:
            await endpoint.ask("POST", PATH, b"{}", {}, WHERE)
    assert raised.value.retryable is (if_idempotent if idempotent else safe)
    assert WHERE in raised.value.message


@pytest.mark.parametrize("announces", [False, True])
async def test_a_trainer_is_asked_whether_it_is_idempotent(
    store: Store, client: TurnClient, tokenizer: ChatTokenizer, announces: bool
) -> None:
    async with scripted_trainer(tokenizer, announces=announces) as trainer:
        endpoint = TrainerEndpoint(client, Breakers(), await spec_of(store, trainer.url), reply_limits=LARGEST)
        assert await endpoint.ask_idempotent({}) is announces
        assert (trainer.health_checks, trainer.exchanges) == (1, [])


async def test_a_port_that_refuses_connections_leaves_the_question_open(store: Store, client: TurnClient) -> None:
    endpoint = TrainerEndpoint(client, Breakers(), await spec_of(store, NOWHERE), reply_limits=LARGEST)
    for _ in range(FAILURES):
        with pytest.raises(TrainerUnreachable):
            await endpoint.ask_idempotent({})
    with pytest.raises(TrainerDown):
        await endpoint.ask_idempotent({})


@pytest.mark.parametrize(
    ("step", "error"),
    [(close(), TrainerUnreachable), (body(b"<html>"), TrainerProtocolError)],
    ids=["hangs up", "a gateway's page"],
)
async def test_a_promise_holds_when_a_reply_is_lost(
    store: Store, client: TurnClient, tokenizer: ChatTokenizer, step: Step, error: type[RolloutError]
) -> None:
    async with scripted_trainer(tokenizer, step, announces=True) as trainer:
        trainers = IdempotentTrainers()
        trainers.hear(trainer.url, {"x-idempotent-turns": "true"})
        spec = await spec_of(store, trainer.url)
        endpoint = TrainerEndpoint(client, Breakers(), spec, reply_limits=LARGEST, trainers=trainers)
        with pytest.raises(error) as raised:
            await endpoint.ask("POST", PATH, b"{}", {}, WHERE)
        assert raised.value.retryable
        assert trainers.said(trainer.url)


@pytest.mark.parametrize("named", [True, False])
async def test_another_services_words_are_not_shown_to_the_caller(
    store: Store, client: TurnClient, named: bool
) -> None:
    """The caller chose the address; a service there must not be readable through it."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(line.partition(": ")[2] for line in head.split("\r\n") if line.lower().startswith("idempotency-key"))
        said = b'{"error": {"message": "root:hunter2"}}'
        repeated = f"X-Turn-Key: {key}\r\n" if named else ""
        writer.write(f"HTTP/1.1 403 No\r\n{repeated}Content-Length: {len(said)}\r\n\r\n".encode() + said)

    async with answering(refuse) as server:
        endpoint = TrainerEndpoint(client, Breakers(), await spec_of(store, server.url), reply_limits=LARGEST)
        with pytest.raises(TrainerStatusError) as raised:
            await endpoint.ask("POST", PATH, b"{}", {"Idempotency-Key": "b-0/1"}, WHERE)
    assert raised.value.failure(1).message == "turn 1: the trainer answered 403" + (": root:hunter2" if named else "")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_name_that_does_not_resolve_is_said(store: Store, kind: str) -> None:
    breakers, url = Breakers(), "http://trainer-7.example:8000"
    said = r"the name trainer-7.example did not resolve \(Temporary failure in name resolution\)"
    take_rows()
    async with asking(kind, Resolver(Targets.parse("*"), _no_such_name), timeout=5) as client:
        endpoint = TrainerEndpoint(client, breakers, await spec_of(store, url), reply_limits=LARGEST)
        for _ in range(FAILURES):
            with pytest.raises(TrainerUnreachable, match=said) as raised:
                await endpoint.ask("POST", PATH, b"{}", {}, WHERE)
            assert raised.value.retryable
        assert {field.split("|")[1] for _, field, _ in take_rows() if field.startswith("model_call_")} == {"unresolved"}
        with pytest.raises(TrainerDown, match=said) as down:
            breakers.check(url)
        assert "refused" not in down.value.message
        with pytest.raises(TrainerDown):
            await endpoint.ask_idempotent({})


async def test_a_port_that_was_down_is_tried_by_a_call_with_a_quick_answer(
    store: Store, client: TurnClient, tokenizer: ChatTokenizer
) -> None:
    """Otherwise everything at the port would wait for one turn of a minute."""
    clock = 0.0
    breakers = Breakers(lambda: clock)
    async with scripted_trainer(tokenizer, hang()) as trainer:
        for _ in range(FAILURES):
            breakers.failed(trainer.url, "refused")
        clock = 1.1
        endpoint = TrainerEndpoint(client, breakers, await spec_of(store, trainer.url), reply_limits=LARGEST)
        turn = asyncio.create_task(endpoint.ask("POST", PATH, b"{}", {}, WHERE))
        await asyncio.to_thread(eventually, lambda: breakers.is_closed(trainer.url))
        assert not turn.done()
        turn.cancel()
    for _ in range(FAILURES):
        breakers.failed(NOWHERE, "refused")
    clock = 2.2
    endpoint = TrainerEndpoint(client, breakers, await spec_of(store, NOWHERE), reply_limits=LARGEST)
    with pytest.raises(TrainerUnreachable, match="refused"):
        await endpoint.ask("POST", PATH, b"{}", {}, WHERE)
    clock = 4.1
    with pytest.raises(TrainerDown):
        await endpoint.ask("POST", PATH, b"{}", {}, WHERE)


async def _no_such_name(name: str) -> list[str]:
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


async def test_a_reply_of_many_objects_is_not_parsed_and_the_same_as_text_is(
    store: Store, client: TurnClient, tokenizer: ChatTokenizer
) -> None:
    arguments = [{"a": 1}, {}] * 200
    as_text = orjson.dumps({"arguments": orjson.dumps(arguments).decode()})
    limits = ReplyLimits(100_000, objects=300)
    async with scripted_trainer(tokenizer, body(orjson.dumps({"arguments": arguments})), body(as_text)) as trainer:
        endpoint = TrainerEndpoint(client, Breakers(), await spec_of(store, trainer.url), reply_limits=limits)
        with pytest.raises(TrainerProtocolError, match=r"has 401 JSON objects, 300 are allowed; send .* as text"):
            await endpoint.ask("POST", PATH, b"{}", {}, WHERE)
        assert (await endpoint.ask("POST", PATH, b"{}", {}, WHERE)).data == as_text


@pytest.mark.parametrize(
    ("step", "outcome"),
    [
        (body(b"{}"), "ok"),
        (status(302), "3xx"),
        (status(422), "4xx"),
        (status(429), "429"),
        (status(503), "5xx"),
        (close(), "broken"),
        (hang(), "timeout"),
        (body(b"x" * (LARGEST.size + 1)), "invalid"),
        (None, "refused"),
    ],
)
async def test_a_call_is_counted_by_how_it_ended(
    store: Store, client: TurnClient, tokenizer: ChatTokenizer, step: Step | None, outcome: str
) -> None:
    take_rows()
    async with scripted_trainer(tokenizer, *([] if step is None else [step])) as trainer:
        url = NOWHERE if step is None else trainer.url
        endpoint = TrainerEndpoint(client, Breakers(), await spec_of(store, url), reply_limits=LARGEST)
        with suppress(RolloutError):
            await endpoint.ask("POST", PATH, b"{}", {}, WHERE)
    fields = {(place, *field.split("|")[1:]) for place, field, _ in take_rows() if field.startswith("model_call_")}
    assert {(place, found) for place, found, _ in fields} == {(url, outcome)}
    assert IN_MODEL_CALL.now == 0


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:secret@host:8081/a/b?key=secret#x", "http://host:8081"),
        ("https://host", "https://host"),
        ("http://[::1]:80", "http://[::1]:80"),
        ("http://host?key=secret", "http://host"),
        ("http://a@b@c", "http://c"),
        ("nonsense", "nonsense://"),
    ],
)
def test_metrics_show_nothing_of_a_url_but_its_origin(url: str, shown: str) -> None:
    assert origin_of(url) == shown
