"""A resources server as an environment: seeded, called, verified, closed; and one that behaves badly."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.support.games import RIGHT, SEED, WRONG
from tests.support.resources_server import ROW, ResourcesServer, row

from rolloutpool_common.errors import EnvironmentFault, EnvironmentLost, RequestFault
from rolloutpool_common.protocol.response_items import output_items
from rolloutpool_common.security.targets import Targets
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_worker.capabilities.foreign_environments.http import HttpEnvironment, HttpServer
from rolloutpool_worker.environments import EnvironmentFull
from rolloutpool_worker.environments.opened import checked_opening

TRANSCRIPT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Guess."},
    {
        "role": "assistant",
        "content": "I try.",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "guess", "arguments": {"number": 3}}}],
    },
    {"role": "tool", "content": "wrong", "tool_call_id": "c1"},
    {"role": "user", "content": "Go on."},
    {"role": "assistant", "content": None, "tool_calls": None},
]


class Address:
    """One address for the servers of all tests: to end uvicorn takes longer than most of them."""

    url = ""
    app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Has the test's own server answer."""
        assert self.app is not None
        await self.app(scope, receive, send)


ADDRESS = Address()


@pytest.fixture(scope="module", autouse=True)
def address() -> Iterator[None]:
    with serve_callback(ADDRESS, [0]) as there:
        ADDRESS.url = there.url
        yield


@asynccontextmanager
async def served(server: ResourcesServer, **options: Any) -> AsyncIterator[HttpEnvironment]:
    ADDRESS.app = server.app
    options = {"crash": "restartable", "done_flag": True, **options}
    environment = HttpEnvironment("guess", HttpServer(url=f"{ADDRESS.url}/", **options), Targets.loopback())
    yield environment
    await environment.aclose()


@asynccontextmanager
async def opened(server: ResourcesServer, row: Any = ROW) -> AsyncIterator[tuple[HttpEnvironment, Any]]:
    """The environment behind a server, and a session of it."""
    async with served(server) as environment:
        yield environment, (await environment.open(row, SEED, "b-0", 1)).session


async def test_a_session_is_seeded_called_verified_and_closed() -> None:
    server = ResourcesServer()
    async with served(server, headers={"X-Key": "k"}) as environment:
        opened = await environment.open(ROW, SEED, "b-0", 1)
        (tool,) = checked_opening(opened).tools
        assert (tool.function.name, tool.function.parameters["required"]) == ("guess", ["number"])
        session = opened.session
        wrong = await environment.call(session, "guess", {"number": WRONG})
        assert (wrong.content, wrong.done) == ('{"said":"wrong at guess 1","done":false}', False)
        right = await environment.call(session, "guess", {"number": RIGHT})
        assert (right.content, right.done) == ('{"said":"right at guess 2","done":true}', True)
        score = await environment.score(session, TRANSCRIPT)
        assert (score.reward, score.parts) == (1.0, {"guesses": 2.0})
        (verified,) = server.verified
        assert verified["responses_create_params"] == ROW["responses_create_params"]
        assert verified["response"]["output"] == output_items(TRANSCRIPT)
        await environment.close(session)


async def test_a_later_attempt_ends_the_session_of_an_earlier_one() -> None:
    server = ResourcesServer()
    async with served(server) as environment:
        old = await environment.open(ROW, SEED, "b-0", 1)
        await environment.open(ROW, SEED, "b-0", 2)
        assert len(server.sessions) == 1
        with pytest.raises(EnvironmentFault, match="this attempt is over, says /guess") as raised:
            await environment.call(old.session, "guess", {"number": 1})
        assert not raised.value.retryable
        with pytest.raises(EnvironmentFault, match="this attempt is over, says /seed_session"):
            await environment.open(ROW, SEED, "b-0", 1)
        # Its close takes nothing away from the later one.
        await environment.close(old.session)
        assert len(server.sessions) == 1


@pytest.mark.parametrize(
    ("manner", "error", "text"),
    [
        ("429", EnvironmentFull, "answered 429"),
        ("503", EnvironmentFull, "answered 503"),
        ("422", RequestFault, "answered 422 to /seed_session"),
        ("500", EnvironmentFault, "answered 500 to /seed_session"),
        ("302", EnvironmentFault, "no redirect is followed"),
        ("huge", EnvironmentFault, "larger than 8,388,608 bytes"),
    ],
)
async def test_what_a_refused_seed_means(manner: str, error: type[Exception], text: str) -> None:
    async with served(ResourcesServer(manners={"seed_session": manner})) as environment:
        with pytest.raises(error, match=text):
            await environment.open(ROW, SEED, "b-0", 1)


@pytest.mark.parametrize(
    ("manner", "text"),
    [
        ("500", "answered 500 to /guess"),
        ("503", "answered 503 to /guess"),
        ("401", "answered 401 to /guess"),
        ("404", "answered 404 to /guess"),
        ("302", "no redirect is followed"),
        ("huge", "larger than"),
    ],
)
async def test_what_a_failed_call_means(manner: str, text: str) -> None:
    server = ResourcesServer()
    async with opened(server) as (environment, session):
        server.manners["guess"] = manner
        with pytest.raises(EnvironmentFault, match=text):
            await environment.call(session, "guess", {"number": 1})
        # At most once.
        assert server.seen["guess"] == 1


@pytest.mark.parametrize("status", ["400", "422"])
async def test_the_policy_reads_what_the_server_says_of_its_call(status: str) -> None:
    server = ResourcesServer(manners={"guess": status})
    async with opened(server) as (environment, session):
        assert (await environment.call(session, "guess", {"number": 1})).content == "no"
        server.manners["guess"] = "garbage"
        assert (await environment.call(session, "guess", {"number": 1})).content == "\x00{["


async def test_a_server_that_counts_calls_and_forgets_a_session_is_found_out() -> None:
    """Otherwise all its later answers are wrong, and the reward of 0 is trained on."""
    server = ResourcesServer(counts=True)
    async with opened(server) as (environment, session):
        await environment.call(session, "guess", {"number": WRONG})
        # A call that the server refuses is not counted.
        server.manners["guess"] = "422"
        await environment.call(session, "guess", {"number": WRONG})
        del server.manners["guess"]
        await environment.call(session, "guess", {"number": RIGHT})
        assert (await environment.score(session, TRANSCRIPT)).reward == 1.0
        server.forget()
        said = "at /verify the server had answered 0 calls of this session, and 2 were made"
        with pytest.raises(EnvironmentLost, match=said) as raised:
            await environment.score(session, TRANSCRIPT)
        assert raised.value.retryable
        with pytest.raises(EnvironmentLost, match="at /guess the server had answered 1 calls of this session, and 3"):
            await environment.call(session, "guess", {"number": WRONG})


@pytest.mark.parametrize("count", ["", "-", "9" * 6000, "1.0"])
async def test_a_count_that_is_no_number_is_a_fault_for_good(count: str) -> None:
    server = ResourcesServer(counts=True, manners={"count": count})
    async with opened(server) as (environment, session):
        with pytest.raises(EnvironmentFault, match="X-Session-Calls of /guess is no number") as raised:
            await environment.call(session, "guess", {"number": WRONG})
        assert not raised.value.retryable


async def test_after_a_call_that_was_given_up_nobody_knows_the_count() -> None:
    server = ResourcesServer(counts=True, manners={"guess": "hang"})
    async with opened(server) as (environment, session):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await environment.call(session, "guess", {"number": WRONG})
        del server.manners["guess"]
        assert "guess 1" in (await environment.call(session, "guess", {"number": WRONG})).content


@pytest.mark.parametrize("manner", ["500", "422", "garbage"])
async def test_a_verify_that_fails_is_no_reward(manner: str) -> None:
    server = ResourcesServer(manners={"verify": manner})
    async with opened(server) as (environment, session):
        with pytest.raises(EnvironmentFault, match="/verify"):
            await environment.score(session, TRANSCRIPT)


async def test_a_reward_that_measures_nothing_is_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ResourcesServer()
    async with opened(server, row(mask_sample=True, failure_kind="judge_down")) as (environment, session):
        with pytest.raises(EnvironmentFault, match=r"its reward measures nothing \(judge_down\)") as raised:
            await environment.score(session, TRANSCRIPT)
        assert raised.value.retryable


@pytest.mark.parametrize("name", ["verify", "seed_session", "../admin", "a/b", "", "x" * 65, "a?b=c"])
async def test_no_tool_leads_to_another_route(name: str) -> None:
    """The names come from whoever submits; the server and its key are the operator's."""
    server = ResourcesServer()
    async with served(server) as environment:
        with pytest.raises(RequestFault):
            await environment.open({"responses_create_params": {"tools": [{"name": name}]}}, SEED, "b-0", 1)
        assert server.seen == {}


async def test_no_address_that_a_seed_returns_is_called() -> None:
    elsewhere = ResourcesServer()
    with serve_callback(elsewhere.app, [0]) as other:
        mcp = {"server_name": "x", "url_path": f"{other.url}/mcp", "transport": "http", "headers": {"Host": "x"}}
        server = ResourcesServer(seeded={"mcp": mcp, "url": other.url, "location": f"{other.url}/guess"})
        async with served(server) as environment:
            opened = await environment.open(ROW, SEED, "b-0", 1)
            await environment.call(opened.session, "guess", {"number": 1})
            await environment.close(opened.session)
    assert (server.seen["guess"], elsewhere.seen.total()) == (1, 0)
