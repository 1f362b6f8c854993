"""Channels to engines for tests: of one process, each for a rollout of its own."""

import asyncio
from typing import Any

import pytest
from tests.support.batches import claim, submit
from tests.support.imitated_engine import ImitatedEngine
from tests.support.sglang_server import sglang_server
from tests.support.vllm_server import vllm_server

from rolloutpool_common.security.targets import Targets
from rolloutpool_common.store import Store
from rolloutpool_worker.capabilities.engines.channel import EngineChannel, LedgerPrompt
from rolloutpool_worker.capabilities.engines.engines import Engines
from rolloutpool_worker.capabilities.engines.reply import EngineTurn
from rolloutpool_worker.policy.asking import Asking, BeforeCall, ungated
from rolloutpool_worker.policy.breaker import Breakers
from rolloutpool_worker.policy.endpoint import ReplyLimits
from rolloutpool_worker.policy.http1 import Http1Client
from rolloutpool_worker.policy.resolver import Resolver

BOTH = pytest.mark.parametrize(
    ("protocol", "server"), [("vllm", vllm_server), ("sglang", sglang_server)], ids=["vllm", "sglang"]
)
"""A test of both engines: the endpoint's protocol, and what imitates it."""

PROMPT = [11, 12, 13]
IDS = [20, 21, 22, 23, 24, 25, 26, 27]


class Channels:
    """Makes channels of one process, and counts their pauses."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.client = Http1Client(Resolver(Targets.loopback()), timeout=5)
        self.engines = Engines()
        self.on_pause: Any = None

    async def to(
        self,
        store: Store,
        engine: ImitatedEngine | str,
        protocol: str = "vllm",
        *,
        attempts: int = 3,
        pause_seconds: float = 60.0,
        group: str | None = None,
        before_call: BeforeCall = ungated,
        **options: Any,
    ) -> EngineChannel:
        url = engine if isinstance(engine, str) else engine.url
        sampling = {"max_tokens": 100, **options.pop("sampling_params", {})}
        fields = {"server_url": url, "protocol": protocol, "sampling_params": sampling, **options}
        (uid,) = await submit(store, [fields])
        self.uid = uid

        async def pause(seconds: float) -> None:
            self.pauses.append(seconds)
            if self.on_pause is not None:
                self.on_pause()
            await asyncio.sleep(0)

        asking = Asking(
            self.client,
            store.with_secrets((await claim(store, uid)).spec),
            uid=uid,
            attempt=2,
            attempts=attempts,
            reply_limits=ReplyLimits(1_000_000),
            pause=pause,
            breakers=Breakers(),
            before_call=before_call,
        )
        return EngineChannel(asking, self.engines, group=group, pause_seconds=pause_seconds, stop_ids=frozenset({9}))


def prompt(ids: list[int] = PROMPT, version: str | None = None) -> LedgerPrompt:
    return LedgerPrompt(",".join(map(str, ids)).encode(), len(ids), version)


def versions(turn: EngineTurn) -> list[tuple[str | None, list[int]]]:
    return [(part.version, part.ids) for part in turn.parts]
