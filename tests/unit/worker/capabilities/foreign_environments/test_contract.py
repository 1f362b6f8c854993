"""What holds for every adapter of environments, whatever is behind it; `test_<adapter>.py` has what only one does."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from tests.support.fake_mcp import fake_mcp
from tests.support.games import SEED
from tests.support.openenv_server import OpenEnvStub
from tests.support.resources_server import ROW
from tests.support.text_packages import put_gem, put_skyrl_gym

from rolloutpool_common.errors import EnvironmentFault, RequestFault, TargetRefused
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.foreign_environments.gem import GemEnvironment
from rolloutpool_worker.capabilities.foreign_environments.http import HttpEnvironment, HttpServer
from rolloutpool_worker.capabilities.foreign_environments.mcp import McpServer
from rolloutpool_worker.capabilities.foreign_environments.openenv import OpenEnvEnvironment, OpenEnvServer
from rolloutpool_worker.capabilities.foreign_environments.package import PackageGame
from rolloutpool_worker.capabilities.foreign_environments.skyrl_gym import SkyrlGymEnvironment
from rolloutpool_worker.environments import Environment

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
