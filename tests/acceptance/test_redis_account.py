"""A whole pool on a Redis behind TLS, with an account that may do only what docs/operations.md lists."""

import re
from pathlib import Path

import httpx
import redis
from tests.acceptance.test_pool import assert_exact, items
from tests.support.certificates import certificate
from tests.support.durable_redis import durable_redis
from tests.support.redis_server import free_port
from tests.support.tls_proxy import tls_proxy

from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import LocalPool, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
ROLLOUTS = 12


def documented_account() -> list[str]:
    """What the page gives to `ACL SETUSER pool`."""
    (line,) = re.findall(r"^ACL SETUSER pool (.+)$", OPERATIONS.read_text(), re.MULTILINE)
    return str(line).replace("PASSWORD", "secret").split()


def test_a_pool_needs_no_more_of_redis_than_the_page_lists(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    authority, context = certificate("localhost", "127.0.0.1", tmp_path)
    port = free_port()
    app = callback_app(ScriptedPolicy(tokenizer, latency=0.2), tokenizer=tokenizer)
    with (
        durable_redis() as server,
        redis.Redis.from_url(server.url, decode_responses=True) as raw,
        tls_proxy(port, int(server.url.rpartition(":")[2].partition("/")[0]), context),
        serve_callback(app, [0]) as served,
    ):
        raw.execute_command("ACL", "SETUSER", "pool", *documented_account())
        raw.execute_command("ACL", "SETUSER", "default", "resetkeys", "resetchannels", "-@all", "+acl", "+ping")
        url = f"rediss://pool:secret@127.0.0.1:{port}/0?ssl_ca_certs={authority}"
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
