"""The engine ports of a campaign's trainer: an imitated vLLM and an imitated SGLang, whose weights are often updated.

Invariant: what a call has sampled is in the log (`drawn`), with prompt and weights, before it is answered. Engines keep
nothing: a call that is made again is sampled again, and the log then has both.
"""

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict

from tests.chaos.manners import Manner
from tests.chaos.record import Record
from tests.support.gradual_engine import GradualSampler, Update
from tests.support.imitated_engine import Asked, CallName, ImitatedEngine
from tests.support.scripted_ids import ScriptedIds
from tests.support.sglang_server import SglangServer, serve_sglang
from tests.support.vllm_server import VllmServer, serve_vllm

from rolloutpool_common.rendering import ChatTokenizer

START_SECONDS = 30.0
TURN_IDS = 30
"""About how many a turn has, so that it takes as long as a turn of another port."""
UPDATE_EVERY = (8.0, 16.0)
UPDATE_SECONDS = 1.0
MODES = {
    Manner.VLLM: (Update.ABORT, Update.WAIT, Update.FREEZE),
    Manner.SGLANG: (Update.ABORT, Update.FREEZE),
}
WITHOUT_GENERATE = 0.5
"""How often a vLLM is one that was not started for `/inference/v1/generate`."""


@contextmanager
def serve_engines(
    ports: Mapping[int, Manner], record: Record, tokenizer: ChatTokenizer, *, turns: int, latency: float
) -> Iterator[None]:
    """Serves engines in a thread until the block ends; each turn takes so many seconds."""
    loop, listens = asyncio.new_event_loop(), threading.Event()

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            updates = []
            for port, manner in ports.items():
                engine = _engine(manner, tokenizer)
                sampler = GradualSampler(
                    engine,
                    ScriptedIds(tokenizer, turns=turns),
                    lambda call: record.write("drawn", **asdict(call)),
                    pause=latency / TURN_IDS,
                )
                _log_calls(engine, record)
                if isinstance(engine, VllmServer):
                    await stack.enter_async_context(serve_vllm(engine, port))
                else:
                    assert isinstance(engine, SglangServer)
                    await stack.enter_async_context(serve_sglang(engine, port))
                updates.append(_update_for_ever(sampler, MODES[manner], record))
            listens.set()
            await asyncio.gather(*updates)

    # It dies with the process, by kill -9 as a rule.
    threading.Thread(target=loop.run_until_complete, args=(serve(),), name="engines", daemon=True).start()
    assert listens.wait(START_SECONDS), "the engines do not listen"
    yield


def _engine(manner: Manner, tokenizer: ChatTokenizer) -> ImitatedEngine:
    if manner is Manner.SGLANG:
        engine: ImitatedEngine = SglangServer(tokenizer, [])
    else:
        engine = VllmServer(tokenizer, [])
        engine.scale_out = random.random() >= WITHOUT_GENERATE
    engine.keeps_requests = False
    engine.version = _now()
    return engine


def _log_calls(engine: ImitatedEngine, record: Record) -> None:
    before = engine.before

    def about(asked: Asked) -> dict[str, object]:
        named = CallName.read(asked.name)
        return {"uid": named.uid, "turn": named.turn, "attempt": named.attempt}

    async def note_ask(asked: Asked) -> None:
        record.write("ask", **about(asked), port=asked.port)
        if before is not None:
            await before(asked)

    engine.before = note_ask
    engine.after = lambda asked: record.write("answer", **about(asked), status=asked.status)


async def _update_for_ever(sampler: GradualSampler, modes: tuple[Update, ...], record: Record) -> None:
    while True:
        await asyncio.sleep(random.uniform(*UPDATE_EVERY))
        how = random.choice(modes)
        record.write("weights", how=how)
        await sampler.update(_now(), how, UPDATE_SECONDS)


def _now() -> str:
    """A version that is higher than all before it, also those of a process that was killed."""
    return str(int(time.time()))
