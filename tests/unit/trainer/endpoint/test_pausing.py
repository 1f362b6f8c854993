"""While the app is paused nothing is sampled; what came meanwhile is sampled afterwards, with the new version."""

import asyncio
import threading
import time

import httpx
import pytest
from tests.support.endpoint_client import ANSWER, QUESTION, ask, body, client_of

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import CallbackApp, callback_app
from rolloutpool_trainer.endpoint.pausing import SamplingGate
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.server import serve_callback


class SlowPolicy:
    """Counts who is being sampled; a turn ends when the test says so."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self.ids = tokenizer.encode(ANSWER)
        self.started = threading.Semaphore(0)
        self.may_end = threading.Event()
        self.running = 0

    def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        self.running += 1
        self.started.release()
        assert self.may_end.wait(10)
        self.running -= 1
        return Generation(token_ids=self.ids, logprobs=[-1.0] * len(self.ids))


def post(url: str, rollout_id: str) -> httpx.Response:
    document = body([QUESTION], rollout_id=rollout_id)
    return httpx.post(f"{url}/v1/chat/completions", json=document, timeout=20, trust_env=False)


def test_a_pause_waits_for_what_is_sampled_and_holds_what_comes(tokenizer: ChatTokenizer) -> None:
    policy = SlowPolicy(tokenizer)
    app = callback_app(policy, tokenizer=tokenizer, policy_version="step-1")
    replies: dict[str, httpx.Response] = {}

    def turn(name: str) -> threading.Thread:
        thread = threading.Thread(target=lambda: replies.update({name: post(served.url, name)}))
        thread.start()
        return thread

    with serve_callback(app, [0]) as served:
        first = turn("first")
        assert policy.started.acquire(timeout=10)
        with pytest.raises(TimeoutError, match="1 turns are still being sampled"):
            app.pause(timeout=0.05)
        pausing = threading.Thread(target=app.pause)
        pausing.start()
        while not app._gate._closed:
            time.sleep(0.001)
        second = turn("second")
        assert not policy.started.acquire(timeout=0.2), "a turn was sampled in spite of the pause"
        policy.may_end.set()
        pausing.join(10)
        first.join(10)
        assert not pausing.is_alive()
        assert policy.running == 0
        assert not policy.started.acquire(timeout=0.1)
        app.resume("step-2")
        second.join(10)
    assert replies["first"].headers["X-Policy-Version"] == "step-1"
    assert replies["second"].headers["X-Policy-Version"] == "step-2"


async def test_pausing_on_the_loop_that_samples_is_refused(tokenizer: ChatTokenizer) -> None:
    app = callback_app(lambda ids, params: Generation(token_ids=[5], logprobs=[-1.0]), tokenizer=tokenizer)
    async with client_of(app) as client:
        await ask(client, body([QUESTION]))
        with pytest.raises(RuntimeError, match="to_thread"):
            app.pause()
        await asyncio.to_thread(app.pause)
        waiting = asyncio.create_task(ask(client, body([QUESTION], rollout_id="other")))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        app.resume()
        assert (await waiting).status_code == 200


async def test_a_failed_turn_does_not_hold_a_pause(tokenizer: ChatTokenizer) -> None:
    def failing(prompt_ids: list[int], params: GenerateParams) -> Generation:
        raise RuntimeError("no")

    app: CallbackApp = callback_app(failing, tokenizer=tokenizer)
    async with client_of(app) as client:
        assert (await ask(client, body([QUESTION]))).status_code == 500
        await asyncio.wait_for(asyncio.to_thread(app.pause), 5)


async def test_a_gate_may_be_closed_again_before_the_held_have_gone_through() -> None:
    gate = SamplingGate()
    gate.close(None)
    entered = 0

    async def turn() -> None:
        nonlocal entered
        async with gate.sampling():
            entered += 1

    turns = [asyncio.create_task(turn()) for _ in range(5)]
    await asyncio.sleep(0)
    gate.open()
    gate.close(None)
    await asyncio.sleep(0.02)
    assert entered == 0
    gate.open()
    await asyncio.wait_for(asyncio.gather(*turns), 5)
    assert entered == 5


def test_opening_a_gate_whose_loop_is_gone_is_no_error() -> None:
    gate = SamplingGate()
    gate.close(None)

    async def held() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gate.sampling().__aenter__(), 0.01)

    asyncio.run(held())
    gate.open()
    gate.open()
