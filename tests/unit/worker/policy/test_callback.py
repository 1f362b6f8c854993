"""How a turn is asked: the body and the headers, and when a call is repeated."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from tests.support.batches import claim, submit
from tests.support.scripted_trainer import ScriptedTrainer, scripted_trainer
from tests.support.trainer_script import say

from rolloutpool_common.protocol.turn_headers import Echo, TurnHeaders, TurnKey
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.security.targets import Targets
from rolloutpool_common.store import Store
from rolloutpool_worker.policy.asking import Asking
from rolloutpool_worker.policy.body import MessageBytes
from rolloutpool_worker.policy.breaker import Breakers
from rolloutpool_worker.policy.callback import CallbackChannel, TurnCall
from rolloutpool_worker.policy.endpoint import ReplyLimits
from rolloutpool_worker.policy.http1 import Http1Client
from rolloutpool_worker.policy.resolver import Resolver

MESSAGES = [{"role": "user", "content": "Calculate 5 + 3"}]


class Channel:
    """A channel for one rollout of this trainer, and the pauses that it made."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.client = Http1Client(Resolver(Targets.loopback()), timeout=5)

    async def to(self, store: Store, trainer: ScriptedTrainer, *, attempts: int = 3, **options: Any) -> CallbackChannel:
        (uid,) = await submit(store, [{"server_url": trainer.url, "callback_api_key": None, **options}])
        self.uid = uid

        async def pause(seconds: float) -> None:
            self.pauses.append(seconds)

        spec = (await claim(store, uid)).spec
        limits = ReplyLimits(1_000_000)
        return CallbackChannel(Asking(self.client, spec, uid, 2, attempts, limits, pause, Breakers()))


@pytest.fixture
async def channel() -> AsyncIterator[Channel]:
    made = Channel()
    yield made
    await made.client.aclose()


def turn_of(asking: CallbackChannel, zeros: int = 0) -> TurnCall:
    return TurnCall(1, asking.body(MessageBytes(MESSAGES), zeros))


@pytest.mark.parametrize("mask", [1, 2, 3])
@pytest.mark.parametrize("echo", [None, Echo(512, "ab" * 16)])
async def test_a_trainer_reads_what_the_headers_say(
    store: Store, channel: Channel, tokenizer: ChatTokenizer, mask: int, echo: Echo | None
) -> None:
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        asking = await channel.to(store, trainer)
        forked_from = TurnKey("b9-7", 4) if mask == 3 else None
        call = replace(turn_of(asking), mask=mask, echo=echo, edited=mask == 2, branch=mask - 1)
        call.in_place_of = forked_from
        await asking.sample(call)
        (asked,) = trainer.exchanges
    assert TurnHeaders.parse({name.title(): value for name, value in asked.headers.items()}) == TurnHeaders(
        key=TurnKey(channel.uid if mask == 1 else f"{channel.uid}~{mask - 1}", 1, mask),
        attempt=2,
        digest=call.body.digest,
        edited=mask == 2,
        echo=echo,
        forked_from=forked_from,
    )
