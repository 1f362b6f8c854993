"""Redis over TLS: each actor verifies who it speaks to, by the store's way and by Celery's."""

import re
import shutil
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from urllib.parse import urlsplit

import httpx
import pytest
from tests.support.certificates import certificate
from tests.support.forked_worker import ForkedWorker, forked
from tests.support.ports import free_port
from tests.support.secrets import secrets_file
from tests.support.tls_proxy import tls_proxy
from tests.support.waiting import eventually

from rolloutpool_common.store import StoreMisaddressed, check_addresses
from rolloutpool_trainer import LocalPool

ACTORS = {
    "api": ["rolloutpool_api.__main__"],
    "worker": ["rolloutpool_worker.__main__", "--worker-id", "w.tls"],
    "parent": ["rolloutpool_worker.__main__"],
    "flower": ["rolloutpool_worker.queue.flower"],
    "door": ["rolloutpool_api.capabilities.harness.__main__"],
    "runner": ["rolloutpool_worker.capabilities.harness.__main__"],
}
LONG = 60.0


@dataclass
class Secured:
    """A Redis behind TLS."""

    url: str
    plain: str
    """The same Redis without TLS."""
    authority: Path
    heard: list[bytes]
    """What its clients have said."""


@pytest.fixture
def secured(redis_url: str, tmp_path: Path) -> Iterator[Secured]:
    """A Redis whose certificate only `authority` vouches for."""
    file, context = certificate("localhost", "127.0.0.1", tmp_path)
    port, target = free_port(), int(redis_url.rpartition(":")[2].partition("/")[0])
    with tls_proxy(port, target, context) as heard:
        yield Secured(f"rediss://127.0.0.1:{port}/0", redis_url, file, heard)


def started(actor: str, **env: str) -> AbstractContextManager[tuple[ForkedWorker, Path]]:
    """An actor as its image starts it, and its output."""
    usual = {
        "ROLLOUT_SERVER_PORT": "0",
        "ROLLOUTPOOL_FLOWER_AUTH": "user:word",
        "ROLLOUTPOOL_RUNNER_PROCESS": "unsafe",
        "ROLLOUTPOOL_SECRETS_FILE": str(secrets_file()),
        "ROLLOUTPOOL_TOKENIZERS": "rolloutpool/tiny",
    }
    return forked(*ACTORS[actor], **{**usual, **env})


@pytest.mark.parametrize(
    ("actor", "setting"),
    [
        *((actor, "ROLLOUTPOOL_REDIS_URL") for actor in ("api", "parent", "flower")),
        *((actor, "ROLLOUTPOOL_BROKER_URL") for actor in ("api", "worker")),
    ],
)
def test_a_certificate_that_nobody_vouches_for_gets_no_word(actor: str, setting: str, secured: Secured) -> None:
    url = secured.url.replace("//", "//:password@")
    with started(actor, **{"ROLLOUTPOOL_REDIS_URL": secured.plain, setting: url}) as (process, log):
        code, said = process.wait(), log.read_text()
    assert code == 2, said
    assert "certificate verify failed: self-signed certificate" in said
    assert "ROLLOUTPOOL_REDIS_CA" in said
    assert secured.heard == []


@pytest.mark.parametrize("actor", ["api", "worker", "flower"])
def test_an_authority_that_is_named_is_trusted(actor: str, secured: Secured) -> None:
    port = free_port()
    env = {
        "ROLLOUTPOOL_REDIS_URL": secured.url,
        "ROLLOUTPOOL_REDIS_CA": str(secured.authority),
        "ROLLOUT_SERVER_PORT": str(port),
        "ROLLOUTPOOL_FLOWER_PORT": str(port),
    }

    def asked(path: str) -> bool:
        assert process.poll() is None
        try:
            # Of the two only Flower wants the password.
            url = f"http://127.0.0.1:{port}{path}"
            return httpx.get(url, timeout=10, trust_env=False, auth=("user", "word")).is_success
        except httpx.TransportError:
            return False

    def announced() -> bool:
        assert process.poll() is None
        return any(b"rollouts.default" in said and b"BRPOP" in said for said in secured.heard)

    ready = {
        "api": lambda: asked("/health"),
        # It takes messages.
        "worker": announced,
        # The page of the broker's queues has a connection of Flower's own.
        "flower": lambda: asked("/broker"),
    }
    with started(actor, **env) as (process, log):
        eventually(ready[actor], seconds=LONG)
        process.send_signal(signal.SIGTERM)
        process.wait()
        assert "certificate" not in log.read_text()


def test_a_local_pool_reports_the_ends_of_its_workers(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    env = {"ROLLOUTPOOL_REDIS_CA": str(secured.authority), "ROLLOUTPOOL_TOKENIZERS": "rolloutpool/tiny"}
    with LocalPool(workers=1, flower=False, redis_url=secured.url, env=env):
        pass
    assert "is not reported yet" not in caplog.text


def test_a_file_that_is_not_there_is_named(secured: Secured) -> None:
    env = {"ROLLOUTPOOL_REDIS_URL": secured.url, "ROLLOUTPOOL_REDIS_CA": "/nowhere.pem"}
    with started("flower", **env) as (process, log):
        assert (process.wait(), log.read_text()) == (
            2,
            "rolloutpool flower: ROLLOUTPOOL_REDIS_CA: no file that can be read\n",
        )


@pytest.mark.parametrize("actor", ["api", "parent", "flower", "door", "runner"])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("database", "Redis has no database of this number"),
        ("password", "Redis refuses the name or password"),
        ("plain to TLS", "this port speaks TLS; write rediss://"),
        ("TLS to plain", "Redis speaks no TLS at this port"),
    ],
)
def test_an_address_that_cannot_be_right_ends_its_actor_with_one_sentence(
    actor: str, fault: str, said: str, secured: Secured
) -> None:
    url = {
        "database": secured.plain.removesuffix("/0") + "/9999",
        "password": secured.plain.replace("//", "//nobody:wrong@"),
        "plain to TLS": secured.url.replace("rediss:", "redis:"),
        "TLS to plain": secured.plain.replace("redis:", "rediss:"),
    }[fault]
    with started(actor, ROLLOUTPOOL_REDIS_URL=url) as (process, log):
        code, lines = process.wait(), log.read_text().splitlines()
    assert (code, len(lines)) == (2, 1), lines
    assert said in lines[0]
    assert f"ROLLOUTPOOL_REDIS_URL (127.0.0.1:{urlsplit(url).port}): " in lines[0]
    assert "wrong" not in lines[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "Redis wants a certificate of its clients: add [?]ssl_certfile="),
        ("&ssl_certfile=/nowhere.pem", "ssl_certfile and ssl_keyfile of the URL can't be used: No such file"),
    ],
)
def test_a_certificate_that_redis_wants_of_its_clients(given: str, said: str, tmp_path: Path) -> None:
    file, context = certificate("localhost", "127.0.0.1", tmp_path)
    context.verify_mode = ssl.CERT_REQUIRED

    class Wanting(BaseRequestHandler):
        def handle(self) -> None:
            # asyncio would end the connection without the alert that says why.
            with suppress(OSError), context.wrap_socket(self.request, server_side=True):
                """Comes to no end without a certificate."""

    with ThreadingTCPServer(("127.0.0.1", 0), Wanting) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        url = f"rediss://127.0.0.1:{server.server_address[1]}/0?ssl_ca_certs={file}{given}"
        try:
            with pytest.raises(StoreMisaddressed, match=said):
                check_addresses({"ROLLOUTPOOL_REDIS_URL": url})
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_certificates_that_the_document_makes_are_trusted_by_every_python(tmp_path: Path) -> None:
    document = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    commands = re.findall(r"^ +((?:openssl|printf) .*)$", document, re.MULTILINE)
    assert len(commands) == 3
    # Python checks as strictly as this from 3.13 on.
    commands.append("openssl verify -x509_strict -CAfile ca.pem redis.pem")
    for command in commands:
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
