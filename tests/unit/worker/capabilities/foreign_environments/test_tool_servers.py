"""Servers that rollouts name: where they may be, what they are told, and which refusals the trainer reads."""

from typing import Any

import pytest
from tests.support.fake_mcp import FakeMcp, fake_mcp
from tests.support.games import GUESS
from tests.support.inside_worker import inside_worker
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import call, say

from rolloutpool_common.errors import EnvironmentFault, RequestFault, TargetRefused
from rolloutpool_common.outcomes import Category, FailureKind, RolloutStatus
from rolloutpool_common.protocol.environments import TOOL_SERVER, CrashEffect
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.foreign_environments.tool_servers import ToolServers

URL = "http://127.0.0.1:9/mcp"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeMcp:
    return fake_mcp(monkeypatch)


async def test_each_rollout_has_a_session_with_the_server_that_it_names(server: FakeMcp) -> None:
    servers = ToolServers(Targets.loopback())
    assert servers.crash is CrashEffect.NONE
    server.repeatable = True
    opened = [await servers.open(f"{URL}/{n}", None, f"b-{n}", 1) for n in range(2)]
    assert [list(one.tools) for one in opened] == [[GUESS], [GUESS]]
    assert (await servers.call(opened[1].session, "guess", {"number": 1})).content == "answer 1"
    # Nobody has declared that it has no state, so a lost answer is not asked for again, whatever the tool's hints say.
    server.fails = [OSError()]
    with pytest.raises(EnvironmentFault, match="guess was not answered"):
        await servers.call(opened[0].session, "guess", {"number": 2})
    assert len(server.calls) == 2
    for one in opened:
        await servers.close(one.session)
    await servers.aclose()
    assert (server.opened, server.closed) == (2, 2)
    # Nothing of the operator's, and a session is asked for.
    told = [(f"{URL}/{n}", {"X-Rollout-Id": f"b-{n}", "X-Rollout-Attempt": "1"}, True) for n in range(2)]
    assert server.told == told


@pytest.mark.parametrize(
    ("url", "error", "text"),
    [
        ("http://10.0.0.1/mcp", TargetRefused, "tool_server_url: 10.0.0.1 at port 80 is in no network"),
        ("http://elsewhere/mcp", TargetRefused, "tool_server_url: elsewhere:80 is not in ROLLOUTPOOL_ALLOWED_TARGETS"),
        ("http://169.254.169.254/", TargetRefused, "is never called"),
        ("http://user:key@127.0.0.1/", TargetRefused, "must not hold user and password"),
        ("ftp://127.0.0.1/", RequestFault, "must be an HTTP/HTTPS URL"),
        ("http://", RequestFault, "with a host"),
        ("", RequestFault, "must be an HTTP/HTTPS URL"),
        (None, RequestFault, "must be an HTTP/HTTPS URL"),
        ({"url": URL}, RequestFault, "must be an HTTP/HTTPS URL"),
        ("http://" + "x" * 100_000, TargetRefused, "tool_server_url: "),
    ],
)
async def test_a_host_that_may_not_be_called_is_not_called(
    server: FakeMcp, url: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text) as raised:
        await ToolServers(Targets.loopback()).open(url, None, "b-0", 1)
    assert len(str(raised.value)) < 1000
    assert server.told == []


async def test_an_address_that_is_refused_at_the_connection_is_no_failure_of_the_server(server: FakeMcp) -> None:
    """The SDK puts it into a group, or into an error of its own."""
    refused, wrapped = TargetRefused("x resolves to 10.0.0.1"), OSError()
    wrapped.__cause__ = refused
    for raised_by_sdk in (refused, ExceptionGroup("", [ValueError(), ExceptionGroup("", [refused])]), wrapped):
        server.refuses = [raised_by_sdk]
        with pytest.raises(TargetRefused, match="tool_server_url: x resolves to ") as raised:
            await ToolServers(Targets.loopback()).open(URL, None, "b-0", 1)
        assert raised.value.failure().kind is FailureKind.REQUEST
    server.refuses = [OSError("no route")]
    with pytest.raises(EnvironmentFault, match=r"environment tool_server_url: no session: OSError: no route"):
        await ToolServers(Targets.loopback()).open(URL, None, "b-0", 1)


async def test_a_rollout_of_v1_has_the_servers_tools(
    server: FakeMcp, fake_redis: str, tokenizers: TokenizerCache, tokenizer: ChatTokenizer
) -> None:
    named = {"environment": {"name": TOOL_SERVER, "task": URL}}
    script = [say(calls=[call("guess", {"number": 1})]), say("done")]
    async with (
        inside_worker(fake_redis, tokenizers, v1_tool_servers=True) as worker,
        scripted_trainer(tokenizer, *script) as trainer,
    ):
        result = await worker.run_one(server_url=trainer.url, v1=True, **named)
        assert (result.status, server.opened, server.closed) == (RolloutStatus.COMPLETED, 1, 1)
        assert [message.content for message in result.messages if message.role == "tool"] == ["answer 1"]
        assert [tool["function"]["name"] for tool in trainer.exchanges[0].document["tools"]] == ["guess"]
        # Only protocol v1's own field leads to it, because only that is checked when the rollout is submitted.
        (uid,) = await worker.submit({"server_url": trainer.url, **named})
        assert await worker.take(uid) != "completed"
        assert (await worker.status(uid)).counts[RolloutStatus.QUEUED] == 1
        refused = {"environment": {"name": TOOL_SERVER, "task": "http://10.0.0.1/"}}
        result = await worker.run_one(server_url=trainer.url, v1=True, **refused)
        assert result.failure is not None
        assert result.failure.category is Category.TARGET_REFUSED
        assert server.opened == 1


async def test_a_worker_without_the_setting_says_so(
    fake_redis: str, tokenizers: TokenizerCache, tokenizer: ChatTokenizer
) -> None:
    async with inside_worker(fake_redis, tokenizers) as worker, scripted_trainer(tokenizer, say()) as trainer:
        environment = {"name": TOOL_SERVER, "task": URL}
        result = await worker.run_one(server_url=trainer.url, v1=True, environment=environment)
        assert trainer.exchanges == []
    assert result.failure is not None
    assert result.failure.kind is FailureKind.REQUEST
    assert "ROLLOUTPOOL_V1_TOOL_SERVERS" in result.failure.message
