"""What holds for every environment, whatever is behind it; `test_<adapter>.py` has what only one does.

A worker opens a session, has it played, asks for its score and closes it. Sessions are apart from each other, the same
play in a session with the same seed is answered alike, and what a closed session held is free.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from tests.support.environment_cases import KINDS, EnvironmentCase, environment_case
from tests.support.fake_mcp import fake_mcp
from tests.support.games import INVITATION, RIGHT, SEED, WRONG
from tests.support.openenv_server import OpenEnvStub
from tests.support.resources_server import ROW
from tests.support.text_packages import put_gem, put_skyrl_gym
from tests.support.waiting import until_true

from rolloutpool_common.errors import EnvironmentFault, RequestFault, TargetRefused
from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.foreign_environments.gem import GemEnvironment
from rolloutpool_worker.capabilities.foreign_environments.http import HttpEnvironment, HttpServer
from rolloutpool_worker.capabilities.foreign_environments.mcp import McpServer
from rolloutpool_worker.capabilities.foreign_environments.openenv import OpenEnvEnvironment, OpenEnvServer
from rolloutpool_worker.capabilities.foreign_environments.package import PackageGame
from rolloutpool_worker.capabilities.foreign_environments.skyrl_gym import SkyrlGymEnvironment
from rolloutpool_worker.environments import Environment
from rolloutpool_worker.environments.opened import checked_opening

Made = Callable[[str], Environment]
GAME = {"id": "game", "options": {"most": 3}}
NOWHERE = "http://127.0.0.1:9"
SERVERS: dict[str, Made] = {
    "http": lambda url: HttpEnvironment("numbers", HttpServer(url=url), Targets.loopback()),
    "openenv": lambda url: OpenEnvEnvironment("numbers", OpenEnvServer(url=url), Targets.loopback()),
}
PACKAGES: dict[str, Made] = {
    "gem": lambda _: GemEnvironment("numbers", PackageGame.model_validate(GAME)),
    "skyrl_gym": lambda _: SkyrlGymEnvironment("numbers", PackageGame.model_validate(GAME)),
}
WRONG_TASKS: dict[str, list[Any]] = {
    "http": [None, 7, "row", [ROW], {"responses_create_params": {"tools": ["guess"]}}],
    "openenv": ["text", [1], 3, {"level": "no such"}],
    "gem": [3, "text", [1], {"dataset_name": "elsewhere"}, {"most": 1, "x": 2}],
    "skyrl_gym": [None, 3, "row", [ROW], {}, {"reward_spec": {}}],
}
TASK = {"skyrl_gym": {"reward_spec": {"ground_truth": "42"}}}
ENTRIES: dict[str, tuple[type[BaseModel], list[tuple[dict[str, Any], str]]]] = {
    "mcp": (
        McpServer,
        [
            ({}, "either url or command"),
            ({"url": "http://h", "command": ["x"]}, "either url or command"),
            ({"url": "http://h", "crash": "snapshot"}, "no snapshots"),
        ],
    ),
    "openenv": (OpenEnvServer, [({}, "url"), ({"url": "http://h", "action_field": ""}, "action_field")]),
    "http": (HttpServer, [({}, "url")]),
    "package": (PackageGame, [({"id": ""}, "id"), ({"id": "x", "options": "s3cret"}, "options")]),
}
FAULTS = [
    (name, kind, entry, fault)
    for name, (kind, own) in ENTRIES.items()
    for entry, fault in [
        *own,
        ({"id": "x", "places": 0} if name == "package" else {"url": "http://h", "places": 0}, "places"),
        ({"id": "x", "token": "s3cret"} if name == "package" else {"url": "http://h", "token": "s3cret"}, "token"),
        *([] if name == "package" else [({"url": "ftp://h"}, "must be an HTTP/HTTPS URL")]),
        *(
            ({"id": "x", "url": "http://h", "crash": crash}, "`restartable` or `none`")
            for crash in ("snapshot", "stateless")
            if name in ("openenv", "package")
        ),
    ]
]


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    put_gem(monkeypatch)
    put_skyrl_gym(monkeypatch)
    fake_mcp(monkeypatch)


@pytest.fixture(params=KINDS)
async def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EnvironmentCase]:
    async with environment_case(request.param, monkeypatch) as made:
        yield made


async def test_a_session_is_opened_played_scored_and_closed(case: EnvironmentCase) -> None:
    there = case.environment
    opened = await there.open(case.task, SEED, "b-0", 1)
    checked = checked_opening(opened)
    # The policy reads an invitation, or which tools there are.
    assert [tool.function.name for tool in checked.tools] == ([] if there.by_text else ["guess"])
    assert checked.messages or checked.tools
    assert all(message["role"] == "user" for message in checked.messages)
    answers = [await case.play(opened.session, number) for number in (WRONG, RIGHT)]
    assert all(answer.content for answer in answers if not answer.done)
    assert not answers[0].done
    score = await there.score(opened.session, [{"role": "user", "content": INVITATION}])
    assert (score is not None) is case.scores
    await there.close(opened.session)
    await until_true(lambda: case.open_sessions() == 0)


async def test_an_entry_says_what_a_crash_does_and_how_many_places_there_are(case: EnvironmentCase) -> None:
    assert (case.environment.crash, case.environment.places) == (CrashEffect.RESTARTABLE, 7)


async def test_the_same_play_with_the_same_seed_is_answered_alike(case: EnvironmentCase) -> None:
    """After a crash the pool plays a session again, and compares."""
    if case.scores:
        assert await case.played("b-0") == await case.played("b-1")


async def test_sessions_are_apart(case: EnvironmentCase) -> None:
    if case.scores:
        alone = await case.played("b-0")
        assert await asyncio.gather(*(case.played(f"b-{index}") for index in (1, 2, 3))) == [alone] * 3
    await until_true(lambda: case.open_sessions() == 0)


@pytest.mark.parametrize("kind", ["http", "openenv"])
async def test_a_server_that_hangs_holds_its_own_caller_only(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with environment_case(kind, monkeypatch) as case:
        opened = await case.environment.open(case.task, SEED, "b-0", 1)
        case.hang()
        waiting = asyncio.create_task(case.play(opened.session, WRONG))
        other = await case.environment.open(case.task, SEED, "b-1", 1)
        await case.environment.close(other.session)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])


@pytest.mark.parametrize(("name", "task"), [(name, task) for name, tasks in WRONG_TASKS.items() for task in tasks])
async def test_a_wrong_task_is_the_requests_fault(name: str, task: Any) -> None:
    async with OpenEnvStub().served() as server:
        environment = (SERVERS | PACKAGES)[name](server.url)
        with pytest.raises(RequestFault):
            await environment.open(task, SEED, "b-0", 1)
        await environment.aclose()


@pytest.mark.parametrize(
    ("name", "says"), [("gem", r"no text \(list\)"), ("skyrl_gym", r"content\[1\]: type image_url")]
)
async def test_what_is_no_text_is_a_fault_of_the_environment_for_good(name: str, says: str) -> None:
    environment = PACKAGES[name]("")
    opened = await environment.open(TASK.get(name), SEED, "b-0", 1)
    with pytest.raises(EnvironmentFault, match=f"environment numbers: it.* {says}; only text is supported") as raised:
        await environment.step(opened.session, "look")
    assert not raised.value.retryable
    await environment.close(opened.session)


@pytest.mark.parametrize("name", SERVERS)
async def test_the_address_is_checked_again_when_it_is_connected_to(name: str) -> None:
    environment = SERVERS[name]("http://169.254.169.254")
    with pytest.raises(TargetRefused):
        await environment.open({}, SEED, "b-0", 1)
    await environment.aclose()


@pytest.mark.parametrize("name", SERVERS)
async def test_a_server_that_is_not_there_is_a_fault_that_may_pass(name: str) -> None:
    environment = SERVERS[name](NOWHERE)
    with pytest.raises(EnvironmentFault) as raised:
        await environment.open({}, SEED, "b-0", 1)
    assert raised.value.retryable
    await environment.aclose()


@pytest.mark.parametrize(("name", "kind", "entry", "fault"), FAULTS)
def test_what_an_entry_may_not_say(name: str, kind: type[BaseModel], entry: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault) as raised:
        kind.model_validate(entry)
    assert "s3cret" not in str(raised.value)
