"""Where the tools in the prompts come from."""

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tests.support.endpoint_client import (
    ANSWER,
    QUESTION,
    TOOLS,
    FixedTexts,
    ask,
    body,
    client_of,
    error_of,
    message_of,
    turn_headers,
)

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.errors import EndpointError
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.endpoint.tool_source import ToolSource


async def test_tools_are_read_from_the_pool_once(tokenizer: ChatTokenizer) -> None:
    asked: list[str] = []

    async def tools(request: Request) -> JSONResponse:
        asked.append(request.url.path)
        return JSONResponse({"tools": TOOLS} if len(asked) > 1 else {"detail": "no worker yet"})

    with serve_callback(Starlette(routes=[Route("/tools", tools)]), [0]) as pool:
        policy = FixedTexts(tokenizer, ANSWER)
        app = callback_app(policy, tokenizer=tokenizer, tools=pool.url + "/")
        async with client_of(app) as client:
            error = error_of(await ask(client, body([QUESTION])), 503)
            assert error["type"] == "tools_unavailable"
            assert pool.url in error["message"]
            for _ in range(2):
                message_of(await ask(client, body([QUESTION]), turn_headers(1)))
                message_of(await ask(client, body([QUESTION], rollout_id="other")))
    assert asked == ["/tools", "/tools"]
    assert policy.prompts == [tokenizer.render_prompt([QUESTION], tools=TOOLS)] * 3


async def test_tools_are_read_at_start(tokenizer: ChatTokenizer) -> None:
    asked: list[str] = []

    async def tools(request: Request) -> JSONResponse:
        asked.append(request.url.path)
        return JSONResponse({"tools": TOOLS})

    with serve_callback(Starlette(routes=[Route("/tools", tools)]), [0]) as pool:
        app = callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer, tools=pool.url)
        with serve_callback(app, [0]):
            assert asked == ["/tools"]
    # A pool that is not up yet does not keep its trainer from starting.
    app = callback_app(FixedTexts(tokenizer, ANSWER), tokenizer=tokenizer, tools=pool.url)
    with serve_callback(app, [0]) as trainer:
        async with httpx.AsyncClient(base_url=trainer.url, trust_env=False) as client:
            assert (await client.get("/health")).json() == {"status": "healthy", "sessions": 0}


CALCULATOR, CLOCK = (
    {"type": "function", "function": {"name": name, "description": name, "parameters": {"type": "object"}}}
    for name in ("calculator", "clock")
)


def test_a_tool_that_is_shown_must_be_there() -> None:
    with pytest.raises(ValueError, match=r"there is no tool clok; there are calculator, clock"):
        ToolSource([CALCULATOR, CLOCK], only=["clok"])
    with pytest.raises(ValueError, match="there are none"):
        ToolSource(None, only=["clock"])


async def test_a_pool_that_lacks_a_shown_tool_is_asked_again(tokenizer: ChatTokenizer) -> None:
    answers = [[CALCULATOR], [CALCULATOR, CLOCK]]

    async def tools(_: Request) -> JSONResponse:
        return JSONResponse({"tools": answers.pop(0)})

    with serve_callback(Starlette(routes=[Route("/tools", tools)]), [0]) as pool:
        source = ToolSource(pool.url, only=["clock"])
        with pytest.raises(EndpointError, match="there is no tool clock; there are calculator"):
            await source.get()
        assert [await source.get() for _ in range(2)] == [[CLOCK]] * 2
