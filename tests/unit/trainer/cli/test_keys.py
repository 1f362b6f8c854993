"""Keys: made by a command, sent to the pool's API and to nobody else, and demanded before a pool is open to others."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from tests.support.stub_pool import Answer, stub_pool
from typer.testing import CliRunner

from rolloutpool_common.security.api_keys import KeyQuota, KeyScope, find_key, parse_keys
from rolloutpool_trainer import AsyncRolloutClient, KeysMissing, LocalPool, RolloutClient
from rolloutpool_trainer.cli import app
from rolloutpool_trainer.cli.doctor import examine
from rolloutpool_trainer.endpoint.errors import EndpointError
from rolloutpool_trainer.endpoint.tool_source import ToolSource

WORKERS = ("GET", "/v1/workers")
TOOLS = ("GET", "/tools")


def test_the_entry_that_is_printed_knows_the_key_that_is_printed() -> None:
    done = CliRunner().invoke(app, ["make-key", "job7", "--scopes", "read, admin"])
    assert done.exit_code == 0
    printed = dict(re.findall(r"^(key|entry) +(\S+)$", done.stdout, re.MULTILINE))
    found = find_key(parse_keys(printed["entry"]), printed["key"])
    assert found is not None
    assert (found.name, found.scopes) == ("job7", frozenset({KeyScope.READ, KeyScope.ADMIN}))
    assert printed["key"] not in printed["entry"]


def test_an_entry_is_printed_with_quota_and_end() -> None:
    given = ["make-key", "job7", "--quota", "open=5, bytes=2kb", "--expires", "2126-12-01"]
    done = CliRunner().invoke(app, [*given, "--json"])
    assert done.exit_code == 0
    (entry,) = parse_keys(json.loads(done.stdout)["entry"])
    assert entry.quota == KeyQuota(open=5, bytes=2048)
    assert entry.expires == datetime(2126, 12, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "arguments",
    [
        *(["a b"], ["job7", "--scopes", "root"], ["public"], ["x:submit"]),
        *(["job7", "--quota", "open=lots"], ["job7", "--quota", "slots=3"], ["job7", "--expires", "soon"]),
        ["job7", "--expires", "2026-11-01"],
    ],
)
def test_what_no_entry_can_be_is_refused(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["make-key", *arguments])
    assert done.exit_code == 2
    assert "rpk_" not in done.output


def test_a_key_for_secrets_is_one_and_new_each_time() -> None:
    first, second = (CliRunner().invoke(app, ["make-secrets-key"]).stdout for _ in range(2))
    assert first != second
    assert Fernet(first.strip()).decrypt(Fernet(first.strip()).encrypt(b"x")) == b"x"


async def test_the_async_client_takes_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUTPOOL_API_KEY", "k-env")
    with stub_pool() as pool:
        pool.on(*WORKERS, Answer(body={"workers": []}))
        async with AsyncRolloutClient(pool.url) as client:
            await client.workers()
    assert pool.requests[0].headers["Authorization"] == "Bearer k-env"


async def test_tools_are_asked_for_with_the_key() -> None:
    with stub_pool() as pool:
        pool.on(*TOOLS, Answer(body={"tools": []}))
        assert await ToolSource(pool.url, "k-1").get() is None
    assert pool.requests[0].headers["Authorization"] == "Bearer k-1"


async def test_a_refused_key_is_told_as_such() -> None:
    with stub_pool() as pool:
        pool.on(*TOOLS, Answer(401, {"detail": "no"}))
        with pytest.raises(EndpointError, match=r"\(401\)"):
            await ToolSource(pool.url).get()


def test_the_doctor_shows_the_key_to_no_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUTPOOL_API_KEY", "k-env")
    with stub_pool() as pool, stub_pool() as trainer:
        for path in ("/health", "/readyz"):
            pool.on("GET", path, Answer(body={"redis_ms": 1.0, "workers": 1}))
        pool.on(*WORKERS, Answer(403, {"error": {"message": "it lacks the scope `admin`"}}))
        with RolloutClient(pool.url, timeout=1) as client:
            findings = {finding.check: finding for finding in examine(client, [trainer.url])}
    assert findings["workers"].verdict == "not checked"
    assert "lacks the scope `admin`" in findings["workers"].detail
    assert len(trainer.requests) == 1
    assert "k-env" not in str(trainer.requests)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "pool.example"])
def test_a_pool_for_others_wants_keys_before_anything_starts(host: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with pytest.raises(KeysMissing, match=r"rolloutpool make-key NAME"):
        LocalPool(host=host, state=state).start()
    assert not state.exists()
