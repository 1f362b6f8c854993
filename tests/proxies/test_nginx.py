"""A pool behind nginx with the configuration of deploy/nginx: everything that a trainer and a browser do passes.

`make test-proxy` runs it (Debian: `apt-get install nginx`). Two API processes are behind it, and one of them ends.
"""

import asyncio
import contextlib
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.acceptance.test_pool import assert_exact, items
from tests.support.ports import free_port
from tests.support.waiting import eventually

from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import LocalPool, RolloutClient, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
CONFIG = Path(__file__).parents[2] / "deploy" / "nginx" / "rolloutpool.conf"

pytestmark = [
    pytest.mark.skipif(NGINX is None, reason="no nginx (Debian: apt-get install nginx): make test-proxy"),
    pytest.mark.slow,
]


@contextlib.contextmanager
def proxy(folder: Path, *apis: str) -> Iterator[str]:
    """Runs nginx in front of these API processes; only addresses are changed in its configuration."""
    port = free_port()
    servers = "\n".join(f"    server {api};" for api in apis)
    text = re.sub(r"^    server 127\.0\.0\.1:9000;$", servers, CONFIG.read_text(), flags=re.MULTILINE)
    text = text.replace("listen 127.0.0.1:8080", f"listen 127.0.0.1:{port}")
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{places}{text}\n}}\n"
    )
    process = subprocess.Popen(
        [str(NGINX), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", f"{folder}/error.log"]
    )
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: answers(url))
        yield url
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait(30)


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/livez", timeout=5).status_code == 200
    return False


@pytest.fixture
def pool() -> Iterator[LocalPool]:
    with LocalPool(2, flower=False, tokenizers=[TINY]) as running:
        yield running


def test_all_ways_pass_and_one_process_may_end(pool: LocalPool, tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    app = callback_app(ScriptedPolicy(tokenizer, latency=0.3), tokenizer=tokenizer)
    with (
        LocalPool(0, flower=False, redis_url=pool.redis_url, state=tmp_path / "second") as second,
        proxy(tmp_path, pool.url.removeprefix("http://"), second.url.removeprefix("http://")) as url,
        RolloutClient(url, timeout=60) as client,
        serve_callback(app, [0]) as served,
    ):
        # A body of some megabytes, and results by long poll, while one of the two processes ends.
        large = [{**item, "metadata": {"note": "x" * 100_000}} for item in items(40)]
        batch = client.submit(large, defaults={"tokenizer_name": TINY}, trainer=served.url)
        reading = batch.results()
        results = [next(reading)]
        second.stop()
        results += reading
        assert_exact(app, results)
        assert len(results) == 40
        # Events arrive one by one, and not all at the end.
        slow = client.submit(items(6), defaults={"tokenizer_name": TINY}, trainer=served.url)
        assert asyncio.run(spread(f"{url}/v1/batches/{slow.batch_id}/events")) > 0.2
        # Protocol v1, which waits for the end of its rollout; and the viewer.
        body = {"rollout_id": "one", "server_url": served.url, "messages": items(1)[0]["messages"]}
        body |= {"sampling_params": {}, "tokenizer_name": TINY, "max_turns": 4}
        assert httpx.post(f"{url}/rollout", json=body, timeout=120).json()["status"] == "COMPLETED"
        assert "<title>rolloutpool</title>" in httpx.get(f"{url}/ui").text


async def spread(url: str) -> float:
    """Seconds between the first and the last result of a stream of events."""
    times = []
    async with httpx.AsyncClient(timeout=120) as client, client.stream("GET", url) as response:
        async for line in response.aiter_lines():
            if line == "event: result":
                times.append(time.monotonic())
                if len(times) == 6:
                    break
    return times[-1] - times[0]
