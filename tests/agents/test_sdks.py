"""What a door writes, as the official SDKs read it: each kind of reply, whole and streamed, and each kind of error."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.agents.conftest import AGENTS, CONTEXT
from tests.support.harness import DoorProcess
from tests.support.imitated_engine import Answer, logprob_of
from tests.support.pool import Pool
from tests.support.vllm_server import vllm_server
from tests.support.waiting import until

from rolloutpool_common.capabilities.harness.sessions import OpenSession, Sessions
from rolloutpool_common.capabilities.harness.wire import SessionEnd
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.server import serve_callback

READER = Path(__file__).with_name("sdk_reader.py")
CLIENTS = ("chat", "responses", "messages")
SAY = re.compile("\\[\\[(.*?)\\]\\]", re.DOTALL)
WAIT = "[[wait]]"
CALL = '<tool_call>\n{"name":"shell","arguments":{"command":"ls"}}\n</tool_call>'
LS = ["shell", {"command": "ls"}]
THOUGHT = "<think>\nI think.\n</think>\n\n"
REPLIES: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("Grüße, 東京.", {"text": "Grüße, 東京."}),
    "call": (CALL, {"calls": [LS]}),
    "calls": (f"{CALL}\n{CALL}", {"calls": [LS, LS]}),
    "both": (f"I look.\n{CALL}", {"text": "I look.", "calls": [LS]}),
    "cut": ("CUT I was ab", {"text": "CUT I was ab"}),
    "reasoning": (f"{THOUGHT}Four.", {"text": "Four.", "reasoning": "I think."}),
    "reasoning-call": (f"{THOUGHT}{CALL}", {"reasoning": "I think.", "calls": [LS]}),
}
ENDS = {
    "chat": {"cut": "length", "calls": "tool_calls", "text": "stop"},
    "responses": {"cut": "max_output_tokens", "calls": "completed", "text": "completed"},
    "messages": {"cut": "max_tokens", "calls": "tool_use", "text": "end_turn"},
}


class EchoPolicy:
    """Says what it is asked to say; does not answer `wait` before its end."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self.ends = threading.Event()

    async def __call__(self, _: list[int], params: GenerateParams) -> Generation:
        ids, finish = self._said(str(params.messages[-1]["content"]))
        if finish == "wait":
            await asyncio.to_thread(self.ends.wait)
        return Generation(
            token_ids=ids, logprobs=[-0.25] * len(ids), finish_reason="length" if finish == "length" else "stop"
        )

    async def sample(self, _: str, prompt: list[int], most: int) -> Answer:
        """The same for an imitated engine; there the pool parses what was said, reasoning too."""
        ids, finish = self._said(self._tokenizer.decode(prompt))
        spans = [{"version": "default", "start": 0, "end": len(ids)}]
        return Answer(ids[:most], finish, spans, [logprob_of(one) for one in ids[:most]])

    def _said(self, asked: str) -> tuple[list[int], str]:
        """Says what stands in brackets last, and how it ends."""
        text = SAY.findall(asked)[-1]
        cut = text.startswith("CUT")
        assert self._tokenizer.close_id is not None
        ids = [*self._tokenizer.encode(text), *([] if cut else [self._tokenizer.close_id])]
        return ids, "wait" if text == "wait" else "length" if cut else "stop"


@pytest.fixture(scope="module")
def echo(tokenizer: ChatTokenizer) -> EchoPolicy:
    return EchoPolicy(tokenizer)


@pytest.fixture(scope="module")
def echo_url(echo: EchoPolicy, tokenizer: ChatTokenizer) -> Iterator[str]:
    with serve_callback(callback_app(echo, tokenizer=tokenizer), [0]) as served:
        yield served.url
        echo.ends.set()


async def opened(
    pool: Pool, door: DoorProcess, url: str, protocol: str = "callback", **choice: Any
) -> tuple[OpenSession, dict[str, Any]]:
    """A session, and what a case has to say of it."""
    harness = {"external": True, **choice}
    shared = {"server_url": url, "harness": harness, "max_tokens_total": 100_000, "protocol": protocol}
    (uid,) = await pool.submit(shared=shared, asks={"harness": True})
    found = await Sessions(pool.store).open(uid)
    assert found is not None
    return found, {"url": f"{door.url}/s/{uid}", "key": await Sessions(pool.store).key(found)}


async def read(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the SDKs have read."""
    process = await asyncio.create_subprocess_exec(
        *(str(AGENTS / "py" / "bin" / "python"), str(READER)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await asyncio.wait_for(process.communicate(json.dumps(cases).encode()), 120)
    found: list[dict[str, Any]] = json.loads(printed)
    return found


@pytest.mark.parametrize("protocol", ["callback", "vllm"])
async def test_each_reply_is_read_as_it_was_sampled(
    agents_pool: Pool,
    agents_door: DoorProcess,
    echo: EchoPolicy,
    echo_url: str,
    tokenizer: ChatTokenizer,
    protocol: str,
) -> None:
    async with vllm_server(tokenizer, "unused") as engine:
        engine.context, engine.sampler = CONTEXT, echo.sample
        url = echo_url if protocol == "callback" else engine.url
        await check_replies(agents_pool, agents_door, url, protocol)


async def check_replies(pool: Pool, door: DoorProcess, url: str, protocol: str) -> None:
    _, at = await opened(pool, door, url, protocol, max_calls_at_once=100)
    # A callback trainer of ours leaves reasoning in the text, where the policy has put it.
    cases = [
        {"client": client, "stream": stream, "prompt": f"[[{said}]]", "reply": name, **at}
        for client in CLIENTS
        for stream in (False, True)
        for name, (said, expected) in REPLIES.items()
        if protocol == "vllm" or "reasoning" not in expected
    ]
    for case, found in zip(cases, await read(cases), strict=True):
        where = f"{case['client']}, stream {case['stream']}, {case['reply']}: {found}"
        assert "error" not in found, where
        expected = {"text": None, "reasoning": None, "calls": [], **REPLIES[case["reply"]][1]}
        calls = [one[1:] for one in found["calls"]]
        assert {"text": found["text"], "reasoning": found["reasoning"], "calls": calls} == expected, where
        assert len({id for id, *_ in found["calls"]}) == len(calls), where
        how = "cut" if case["reply"] == "cut" else "calls" if calls else "text"
        assert found["ended"] == ENDS[case["client"]][how], where
        prompt, sampled, total = found["usage"]
        assert (prompt > 0, sampled > 0, total) == (True, True, prompt + sampled), where
        assert bool(found["kinds"]) == case["stream"], where


async def test_what_else_the_sdks_ask_is_answered(agents_pool: Pool, agents_door: DoorProcess, echo_url: str) -> None:
    """A reply that is named goes on in its line, and a prompt is counted as it is rendered."""
    session, at = await opened(agents_pool, agents_door, echo_url)
    case = {"stream": False, **at}
    (first,) = await read([{**case, "client": "responses", "prompt": "[[one]]"}])
    (second,) = await read([{**case, "client": "responses", "prompt": "[[two]]", "after": first["id"]}])
    assert second["text"] == "two"
    assert second["usage"][0] > sum(first["usage"][:2])
    asks = {**case, "client": "messages", "prompt": "[[three]]"}
    (counted,), (asked,) = await read([{**asks, "counts": True}]), await read([asks])
    assert counted["counted"] == asked["usage"][0]
    assert (await Sessions(agents_pool.store).end(session.uid, SessionEnd(reward=1.0))) == "ok"
    report = (await agents_pool.result(session.uid)).harness
    assert report is not None
    assert [line.turns for line in report.lines] == [2, 1]


async def test_each_error_is_of_the_sdk_s_own_class(agents_pool: Pool, agents_door: DoorProcess, echo_url: str) -> None:
    _, plain = await opened(agents_pool, agents_door, echo_url)
    _, short = await opened(agents_pool, agents_door, echo_url, max_mb=0.001)
    _, once = await opened(agents_pool, agents_door, echo_url, max_calls=1)
    busy, full = await opened(agents_pool, agents_door, echo_url, max_calls_at_once=1)
    headers = {"authorization": f"Bearer {full['key']}"}
    body = {"messages": [{"role": "user", "content": WAIT}]}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        held = asyncio.create_task(http.post(f"{full['url']}/v1/chat/completions", json=body, headers=headers))
        await until(lambda: waits(agents_pool, busy.uid, 1))
        used = {"client": "chat", "stream": False, "prompt": "[[once]]", **once}
        assert "error" not in (await read([used]))[0]
        errors: list[tuple[str, dict[str, Any], int]] = [
            ("AuthenticationError", {**plain, "key": "sk-wrong"}, 401),
            ("BadRequestError", {**plain, "prompt": [{"type": "input_image"}]}, 400),
            ("NotFoundError", {**plain, "url": f"{plain['url']}/elsewhere"}, 404),
            ("ContentTooLargeError", {**short, "prompt": "x" * 20_000}, 413),
            ("PermissionDeniedError", once, 403),
            ("RateLimitError", full, 429),
        ]
        cases = [
            {"client": client, "stream": stream, "prompt": "[[say]]", **case}
            for client in CLIENTS
            for stream in (False, True)
            for _, case, _ in errors
        ]
        for place, (case, found) in enumerate(zip(cases, await read(cases), strict=True)):
            name, _, status = errors[place % len(errors)]
            if status == 413 and case["client"] != "messages":
                name = "APIStatusError"
            where = f"{case['client']}, stream {case['stream']}: {found}"
            assert (found["error"], found["status"]) == (name, status), where
            assert found["type"], where
        held.cancel()
    await agents_pool.store.rollouts.cancel(busy.uid)


async def test_an_end_in_the_middle_of_a_stream_is_an_error(
    agents_pool: Pool, agents_door: DoorProcess, echo_url: str
) -> None:
    session, at = await opened(agents_pool, agents_door, echo_url)
    reading = asyncio.create_task(
        read([{"client": client, "stream": True, "prompt": WAIT, **at} for client in CLIENTS])
    )
    await until(lambda: waits(agents_pool, session.uid, len(CLIENTS)))
    body = {"messages": [{"role": "user", "content": WAIT}], "stream": True}
    headers = {"authorization": f"Bearer {at['key']}"}
    async with (
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
        http.stream("POST", f"{at['url']}/v1/chat/completions", json=body, headers=headers) as stream,
    ):
        # The others were there before, so their streams have begun, too.
        await anext(stream.aiter_bytes())
        await agents_pool.store.rollouts.cancel(session.uid)
        for found in await reading:
            assert "error" in found, found
            assert "ended" in found["message"], found


async def waits(pool: Pool, uid: str, calls: int) -> bool:
    """Whether so many calls wait for their answers."""
    return (await Sessions(pool.store).state(uid)).waiting == calls
