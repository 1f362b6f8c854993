"""Two vLLM behind nginx, which gives each call to the next one, while their weights change and one of them dies."""

import contextlib
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.real_engines.conftest import VERSIONS
from tests.real_engines.server import EngineServer, VllmServer
from tests.real_engines.test_engines import PROMPTS, SIZE, TOLERANCE, assert_whole, difference, read_results, submit
from tests.support.ports import free_port

from rolloutpool_trainer import LocalPool

NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")

pytestmark = [
    pytest.mark.skipif(NGINX is None, reason="no nginx (Debian: apt-get install nginx)"),
    pytest.mark.timeout(1200),
]


@contextlib.contextmanager
def router(folder: Path, urls: Sequence[str]) -> Iterator[str]:
    """Runs nginx before some servers."""
    port = free_port()
    servers = " ".join(f"server {url.removeprefix('http://')} fail_timeout=1s;" for url in urls)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/nginx.pid; events {{}}\n"
        "http { access_log off; client_max_body_size 0; proxy_http_version 1.1;\n"
        + "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
        + f"upstream engines {{ {servers} }}\n"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://engines; }} }} }}\n"
    )
    process = subprocess.Popen([str(NGINX), "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait(60)


@pytest.mark.parametrize("engine", ["vllm"], indirect=True)
def test_two_engines_behind_a_router_change_their_weights_and_one_dies(
    pool: LocalPool, engine: EngineServer, weights: dict[str, Path], tmp_path: Path
) -> None:
    other = VllmServer(weights["1"], tmp_path / "log")
    names = {version: str(40 + int(version)) for version in VERSIONS}
    both, calls = (engine, other), engine.calls
    for one in both:
        one.load(weights["1"], names["1"])

    def come_back() -> None:
        other.start()
        other.load(weights["2"], names["2"])

    again = threading.Timer(1.0, come_back)

    def die() -> None:
        other.kill()
        again.start()

    with contextlib.ExitStack() as stack:
        stack.callback(other.kill)
        url = stack.enter_context(router(tmp_path, [one.url for one in both]))
        client = stack.enter_context(pool.client())

        def update() -> None:
            client.pause("routed")
            for one in both:
                one.pause("abort")
                one.load(weights["2"], names["2"])
                one.resume()
            client.announce("routed", names["2"])
            client.resume("routed")

        batch = submit(client, engine, url=url, n=3 * PROMPTS, run="routed")
        results = read_results(batch, {PROMPTS: update, 5 * PROMPTS: die})
        again.join()
    assert_whole(results, 3 * PROMPTS * SIZE)
    turns = [turn for result in results for turn in result.turns]
    assert any(turn.aborts for turn in turns)
    asked = engine.calls - calls
    assert asked > 0 < other.calls
    # Until it is told, a new process has the weights that it was started with, and names none.
    known = {names[version]: weights[version] for version in VERSIONS} | {"default": weights["1"]}
    compared, largest = difference(results, known, tmp_path)
    print(f"{asked} and {other.calls} calls, {compared} log-probabilities, largest difference {largest:.1e}")
    assert largest <= TOLERANCE
