"""The pattern of the founding notes, as well as it can be done: one asyncio server, nothing durable.

    python -m benchmarks.founding --in-flight 100

`POST /rollout` runs a whole rollout and answers with its transcript. All rollouts share one HTTP client. In each turn
the whole history is rendered and tokenised on the event loop, and the mask is the difference of two lengths. No ids are
checked. The form that is measured is tuned to be cheap: no access log, `sniffio` installed, uvloop, tools that take no
time, and as many connections as rollouts in flight. Prints its port, then serves until it is killed.
"""

import argparse
import asyncio
import json
import operator
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from benchmarks import lookup
from fastapi import FastAPI

from rolloutpool_common.protocol.completions import CompletionsRequest, CompletionsResponse
from rolloutpool_common.protocol.messages import Message, ToolCall
from rolloutpool_common.protocol.v1.request import RolloutRequest
from rolloutpool_common.protocol.v1.response import RolloutMetrics, RolloutResponse, V1Status
from rolloutpool_common.rendering import ChatTokenizer, load_tokenizer, rerender

TIMEOUT_SECONDS = 600.0
KEPT_ALIVE = 20
"""The pattern documents this number. To keep all of 100 connections costs it twice as much: httpcore polls each."""
_TOOLS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    lookup.NAME: lookup.passage,
}


class Session:
    """One rollout: its messages, and the length of the last prompt that the trainer has seen."""

    def __init__(self, request: RolloutRequest, tokenizer: ChatTokenizer, http: httpx.AsyncClient) -> None:
        self.messages = [message.wire() for message in request.messages]
        self.metrics = RolloutMetrics()
        self._request = request
        self._tokenizer = tokenizer
        self._http = http
        self._seen = 0

    async def sample(self) -> Message:
        """Asks the policy for its next message."""
        prompt = len(rerender(self._tokenizer, self.messages))
        new = prompt - self._seen if self._seen else 0
        params = self._request.sampling_params
        body = CompletionsRequest(
            messages=[Message.model_validate(message) for message in self.messages],
            rollout_id=self._request.rollout_id,
            temperature=params.temperature,
            top_p=params.top_p,
            max_tokens=params.max_tokens,
            stop=params.stop,
            logprobs=params.logprobs,
            response_mask=[0] * new if new > 0 else None,
        )
        start = time.perf_counter()
        answer = await self._http.post(
            f"{self._request.server_url}/v1/chat/completions", json=body.model_dump(mode="json")
        )
        answer.raise_for_status()
        reply = CompletionsResponse.model_validate(answer.json())
        self._seen = prompt + len(reply.token_ids)
        metrics = self.metrics
        metrics.llm_latency_ms += (time.perf_counter() - start) * 1000
        metrics.num_llm_calls += 1
        metrics.prompt_tokens += len(reply.prompt_token_ids or ())
        metrics.response_tokens += len(reply.token_ids)
        return reply.choices[0].message

    async def run(self) -> str:
        """Runs the rollout to its end and returns why it ended."""
        for _ in range(self._request.max_turns):
            message = await self.sample()
            if self.metrics.response_tokens >= self._request.max_tokens_total:
                return "max_tokens"
            self.messages.append(message.wire())
            if not message.tool_calls:
                return "stop"
            self.messages += await asyncio.gather(*(self._result(call) for call in message.tool_calls))
        return "max_turns"

    async def _result(self, call: ToolCall) -> dict[str, Any]:
        arguments = call.function.arguments
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
        self.metrics.num_tool_calls += 1
        value = _TOOLS[call.function.name](*given.values())
        return Message(role="tool", content=str(value), tool_call_id=call.id).wire()


def app(tokenizer: ChatTokenizer, in_flight: int) -> FastAPI:
    """Makes the server. Rollouts beyond `in_flight` wait."""
    slots = asyncio.Semaphore(in_flight)
    limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=KEPT_ALIVE)
    http = httpx.AsyncClient(timeout=300.0, limits=limits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with http:
            yield

    server = FastAPI(lifespan=lifespan)

    @server.post("/rollout")
    async def rollout(request: RolloutRequest) -> RolloutResponse:
        start = time.perf_counter()
        async with asyncio.timeout(TIMEOUT_SECONDS), slots:
            session = Session(request, tokenizer, http)
            reason = await session.run()
        session.metrics.total_latency_ms = (time.perf_counter() - start) * 1000
        return RolloutResponse(
            rollout_id=request.rollout_id,
            status=V1Status.COMPLETED,
            final_messages=[Message.model_validate(message) for message in session.messages],
            finish_reason=reason,
            metrics=session.metrics,
        )

    return server


def main() -> None:
    """Serves until the process is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--in-flight", type=int, required=True)
    parser.add_argument("--tokenizer", required=True)
    options = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    config = uvicorn.Config(
        app(load_tokenizer(options.tokenizer), options.in_flight), access_log=False, log_level="error", ws="none"
    )
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
