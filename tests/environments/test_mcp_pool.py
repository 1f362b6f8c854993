"""MCP servers in a pool of real processes: a worker that is killed in the middle of a call, and v1's tool servers."""

import asyncio
import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.environments.mcp_server import make_server
from tests.support.pool import opened_pool
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import Step, call, say
from tests.support.waiting import until_true
from tests.support.worker_process import ROOT, started_worker

from rolloutpool_common.outcomes import Category, FailureKind, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_trainer import LocalPool
from rolloutpool_trainer.endpoint.server import ServedCallback, serve_callback

pytestmark = [
    pytest.mark.skipif(find_spec("mcp") is None, reason="needs the MCP SDK: make test-environments"),
    # The SDK's own: both versions warn of their own parts.
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(180),
]

HUNG_SECONDS = 8.0
"""How long a call takes in whose middle the worker is killed."""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What calls have done."""
    path = tmp_path / "marks"
    path.touch()
    monkeypatch.setenv("MCP_LOG", str(path))
    return path


@pytest.fixture
def there(log: Path) -> Iterator[ServedCallback]:
    with serve_callback(make_server().streamable_http_app(), [0]) as served:
        yield served


def read(result: RolloutResult) -> list[Any]:
    """What the policy has read of its calls."""
    return [message.content for message in result.messages if message.role == "tool"]


async def test_a_call_in_a_worker_that_is_killed_is_made_at_most_once_unless_its_hints_allow(
    redis_url: str, tokenizer: ChatTokenizer, tmp_path: Path, log: Path, there: ServedCallback
) -> None:
    file = tmp_path / "environments.toml"
    kinds = ("none", "stateless", "restartable")
    file.write_text(
        "".join(f'[{crash}]\nkind = "mcp"\nurl = "{there.url}/mcp"\ncrash = "{crash}"\n' for crash in kinds)
    )
    file.chmod(0o600)
    # What is declared, the tool, and how often the second call is made. A restartable session is begun again with all
    # its calls, in a session of the server's that is new.
    cases = [
        ("none", "mark", 1),
        ("none", "look", 1),
        ("stateless", "mark", 1),
        ("stateless", "look", 2),
        ("restartable", "mark", 2),
    ]
    names = [f"{crash} {tool}" for crash, tool, _ in cases]

    def script(name: str) -> list[Step]:
        _, tool = name.split()
        first = say(calls=[call(tool, {"word": f"{name} 1", "seconds": 0})])
        second = say(calls=[call(tool, {"word": f"{name} 2", "seconds": HUNG_SECONDS})])
        return [first, second, say("done")]

    rollouts = [{"rollout_id": name, "environment": {"name": name.split()[0]}} for name in names]
    named = str(file)

    def marks() -> list[str]:
        return log.read_text().splitlines()

    async with (
        opened_pool(redis_url) as pool,
        scripted_trainer(tokenizer, scripts={name: script(name) for name in names}, announces=True) as trainer,
    ):
        with started_worker(redis_url, ROLLOUTPOOL_ENVIRONMENTS_FILE=named) as first:
            await first.announced(pool.store)
            uids = await pool.submit(rollouts, shared={"server_url": trainer.url})
            await until_true(lambda: sum(mark.endswith(" 2") for mark in marks()) == len(cases), 60)
            first.kill()
        with started_worker(redis_url, ROLLOUTPOOL_ENVIRONMENTS_FILE=named) as second:
            await second.announced(pool.store)
            async with pool.reconciled():
                results = dict(zip(names, [await pool.result(uid, 90) for uid in uids], strict=True))
            second.terminate()
            assert await second.ended() == 0, second.log()
        assert trainer.app.sampling_log.repeated() == {}
    assert {f"{crash} {tool}": marks().count(f"{crash} {tool} 2") for crash, tool, _ in cases} == {
        f"{crash} {tool}": times for crash, tool, times in cases
    }
    for (_, _, times), (name, result) in zip(cases, results.items(), strict=True):
        if times == 1:
            assert result.failure is not None
            assert (result.failure.kind, result.failure.category) == (FailureKind.INFRA, Category.ENVIRONMENT_LOST)
            assert result.reward is None
        else:
            assert (result.status, read(result)) == (RolloutStatus.COMPLETED, [f"{name} 1", f"{name} 2"])
    # The calls before that were answered, and only a restartable session needs them again.
    assert [marks().count(f"{name} 1") for name in names] == [1, 1, 1, 1, 2]


async def test_servers_behind_a_command_and_a_url_answer_in_workers_as_operators_start_them(
    redis_url: str, tokenizer: ChatTokenizer, tmp_path: Path, there: ServedCallback
) -> None:
    """Celery puts a proxy without a descriptor in the place of `sys.stderr`, and a command's server needs one."""
    file = tmp_path / "environments.toml"
    command = [sys.executable, "-m", "tests.environments.mcp_server"]
    file.write_text(
        f'[url]\nkind = "mcp"\nurl = "{there.url}/mcp"\n'
        f'[command]\nkind = "mcp"\ncommand = {json.dumps(command)}\nenv = {{PYTHONPATH = "{ROOT}"}}\n'
    )
    file.chmod(0o600)
    rollouts = [{"rollout_id": kind, "environment": {"name": kind}} for kind in ("url", "command")]
    script = [say(calls=[call("add", {"n": 2})]), say(calls=[call("complain", {})]), say("done")]
    async with (
        opened_pool(redis_url) as pool,
        scripted_trainer(tokenizer, *script, announces=True) as trainer,
    ):
        named = str(file)
        with started_worker(redis_url, arguments=("--processes", "1"), ROLLOUTPOOL_ENVIRONMENTS_FILE=named) as worker:
            async with pool.reconciled():
                uids = await pool.submit(rollouts, shared={"server_url": trainer.url})
                results = [await pool.result(uid, 60) for uid in uids]
            log = worker.log()
    for result in results:
        assert (result.failure, read(result)) == (None, ["counter 2", "complained"]), log
    # What a server behind a command says of itself is in the worker's log.
    assert "the fuse is warm" in log


async def test_a_v1_rollout_calls_its_tool_server_where_the_operator_allows_it(
    tokenizer: ChatTokenizer, there: ServedCallback
) -> None:
    """Each with a session of its own; and what may not be called is refused at once, a redirect too."""
    script = [say(calls=[call("add", {"n": 2})]), say(calls=[call("add", {"n": 3})]), say("done")]
    env = {"ROLLOUTPOOL_V1_TOOL_SERVERS": "true"}

    def body(name: str, tools: str | None) -> dict[str, Any]:
        message = {"role": "user", "content": "Count."}
        fields = {"rollout_id": name, "server_url": trainer.url, "messages": [message], "sampling_params": {}}
        return {**fields, "tokenizer_name": str(TINY_TOKENIZER), "tool_server_url": tools}

    async with scripted_trainer(tokenizer, *script) as trainer:
        pool = await asyncio.to_thread(LocalPool(workers=1, flower=False, env=env).start)
        try:
            async with httpx.AsyncClient(base_url=pool.url, timeout=60) as client:

                async def run(name: str, tools: str | None) -> httpx.Response:
                    return await client.post("/rollout", json=body(name, tools))

                answers = await asyncio.gather(*(run(f"r-{n}", f"{there.url}/mcp") for n in range(5)))
                for answer in answers:
                    document = answer.json()
                    assert (answer.status_code, document["status"]) == (200, "COMPLETED"), document
                    told = [m["content"] for m in document["final_messages"] if m["role"] == "tool"]
                    assert told == ["counter 2", "counter 5"]
                refused = await run("refused", "http://10.0.0.1/mcp")
                assert refused.status_code == 422
                assert refused.json()["detail"][0]["loc"] == ["body", "tool_server_url"]
                assert "ROLLOUTPOOL_ALLOWED_TARGETS" in json.dumps(refused.json())

                # A redirect to somewhere else is not followed.
                async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
                    headers = [(b"location", f"{there.url}/mcp".encode())]
                    await send({"type": "http.response.start", "status": 307, "headers": headers})
                    await send({"type": "http.response.body", "body": b""})

                with serve_callback(elsewhere, [0]) as moved:
                    document = (await run("moved", f"{moved.url}/mcp")).json()
                    assert document["status"] == "ERROR"
                    assert "tool_server_url" in document["error_message"]
        finally:
            await asyncio.to_thread(pool.stop)


async def test_a_v1_rollout_ignores_its_tool_server_otherwise(tokenizer: ChatTokenizer) -> None:
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        pool = await asyncio.to_thread(LocalPool(workers=1, flower=False).start)
        try:
            async with httpx.AsyncClient(base_url=pool.url, timeout=60) as client:
                message = {"role": "user", "content": "Count."}
                fields = {"rollout_id": "r", "server_url": trainer.url, "messages": [message], "sampling_params": {}}
                answer = await client.post(
                    "/rollout",
                    json={**fields, "tokenizer_name": str(TINY_TOKENIZER), "tool_server_url": "http://10.0.0.1/"},
                )
            assert answer.json()["status"] == "COMPLETED"
        finally:
            await asyncio.to_thread(pool.stop)
