"""A whole pool on a Redis behind TLS, with an account that may do only what docs/operations.md lists."""

import re
from pathlib import Path

import httpx
import pytest
import redis
from tests.acceptance.test_pool import assert_exact, items
from tests.support.certificates import certificate
from tests.support.durable_redis import durable_redis
from tests.support.ports import free_port
from tests.support.tls_proxy import tls_proxy

from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import LocalPool, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

ROOT = Path(__file__).parents[2]
PRINTED = (ROOT / "docs" / "operations.md", ROOT / "deploy" / "sentinel" / "redis.conf")
ROLLOUTS = 12


def documented_account() -> list[str]:
    """The line of redis.conf that the page and the recipe of a fail-over print."""
    lines = [re.findall(r"^(?:# )?user pool (.+)$", file.read_text(), re.MULTILINE) for file in PRINTED]
    assert lines[0] == lines[1]
    (line,) = lines[0]
    return str(line).replace("PASSWORD", "secret").split()


@pytest.mark.slow
def test_a_pool_needs_no_more_of_redis_than_the_page_lists(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    authority, context = certificate("localhost", "127.0.0.1", tmp_path)
    port = free_port()
    app = callback_app(ScriptedPolicy(tokenizer, latency=0.2), tokenizer=tokenizer)
    with (
        durable_redis("--user", "pool", *documented_account()) as server,
        redis.Redis.from_url(server.url, decode_responses=True) as raw,
        tls_proxy(port, int(server.url.rpartition(":")[2].partition("/")[0]), context),
        serve_callback(app, [0]) as served,
    ):
        raw.execute_command("ACL", "SETUSER", "default", "resetkeys", "resetchannels", "-@all", "+acl", "+ping")
        # Celery's channels have the number of the database in their names.
        url = f"rediss://pool:secret@127.0.0.1:{port}/3?ssl_ca_certs={authority}"
        with LocalPool(2, tokenizers=[TINY], redis_url=url) as pool, pool.client() as client:
            batch = client.submit(items(ROLLOUTS), defaults={"tokenizer_name": TINY}, trainer=served.url)
            reading = batch.results()
            results = [next(reading)]
            # What a crash and the operator's commands need is allowed too.
            pool.kill_worker(0)
            results += reading
            assert pool.wait_flower()
            assert all(worker["lifeline"] for worker in client.workers() if worker["alive"])
            assert client.dead_letters().rollouts == []
            assert "not checked" not in httpx.get(f"{pool.url}/readyz", timeout=30).text
            batch.purge()
        refused = raw.execute_command("ACL", "LOG")
        raw.execute_command("ACL", "SETUSER", "default", "allkeys", "allchannels", "+@all")
    assert [(entry["context"], entry["object"], entry["count"], entry["reason"]) for entry in refused] == []
    assert_exact(app, results)
    assert len(results) == ROLLOUTS
