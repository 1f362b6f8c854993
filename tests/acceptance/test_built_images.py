"""What `make images` built, on the mounts of Compose: it works, writes nothing, and holds nothing of its builder."""

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from scripts.build_images import BUILDAH, SYSTEM_BUNDLE
from tests.support.images import BUILT, NAMES, ROOT, SERVICES, UID, answers, container_of
from tests.support.ports import free_port
from tests.support.printed_documents import read_document
from tests.support.secrets import secrets_file
from tests.support.waiting import eventually

from rolloutpool_common.rendering import TINY
from rolloutpool_common.security.api_keys import KeyScope, make_key
from rolloutpool_trainer.testing import calculator_prompts

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(not BUILT, reason="make images builds them")]
PLUGIN = '''
from rolloutpool_worker.tools import ToolContext, tool

@tool("shout", "Says it loudly", {"type": "object", "properties": {}})
async def shout(context: ToolContext) -> str:
    """Shouts."""
    return "!"
'''
ROLLOUTS = 16


def inspected(image: str) -> dict[str, object]:
    done = subprocess.run([*BUILDAH, "inspect", "--type", "image", image], capture_output=True, text=True, check=True)
    document: dict[str, object] = json.loads(done.stdout)["Docker"]
    return document


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_build_machine_is_inside(name: str, tmp_path: Path) -> None:
    (base,) = set(re.findall(r"^FROM (\S+)", (ROOT / "deploy" / f"{name}.Dockerfile").read_text(), re.MULTILINE))
    look = f"sha256sum {SYSTEM_BUNDLE}; find /etc/pip.conf /etc/uv /root/.cache /root/.config /tmp -type f"
    with container_of(name, tmp_path) as image, container_of(base, tmp_path) as bare:
        seen, expected = (container.run("sh", "-c", f"exec 2>/dev/null; {look}").stdout for container in (image, bare))
        assert seen == expected
        assert re.match(r"[0-9a-f]{64} ", seen)
        # The base has no certificate of a proxy; where there is none, there is nothing to find.
        own = Path(os.environ.get("SSL_CERT_FILE", SYSTEM_BUNDLE)).read_text()
        inside = image.run("cat", SYSTEM_BUNDLE).stdout
        assert len(inside.split("-----BEGIN CERTIFICATE-----")) > 100
        assert inside != own or os.environ.get("SSL_CERT_FILE") is None
    text = json.dumps(inspected(f"localhost/rolloutpool-{name}"))
    assert not re.search(r"[A-Z_]*(?:CERT|PROXY|INDEX)[A-Z_]*=", text, re.IGNORECASE)
    assert str(ROOT) not in text


@pytest.mark.parametrize("name", NAMES)
def test_an_image_says_which_commit_it_was_built_from(name: str, tmp_path: Path) -> None:
    text = json.dumps(inspected(f"localhost/rolloutpool-{name}"))
    label = re.search(r'"org.opencontainers.image.revision": "([^"]+)"', text)
    assert label is not None
    with container_of(name, tmp_path) as image:
        asked = "from rolloutpool_common.process.build import commit; print(commit())"
        assert image.run("python", "-c", asked).stdout.strip() == label[1]


def test_compose_runs_a_batch_of_a_mock_trainer_and_writes_nothing(redis_url: str, tmp_path: Path) -> None:
    """All four images, on the file systems that Compose mounts, with a plug-in, for a trainer as a user starts it."""
    api_port, flower_port = free_port(), free_port()
    url, redis = f"http://127.0.0.1:{api_port}", {"ROLLOUTPOOL_REDIS_URL": redis_url}
    key, entry = make_key("tests", list(KeyScope))
    caller = {"ROLLOUTPOOL_URL": url, "ROLLOUTPOOL_API_KEY": key}
    shared = {"ROLLOUTPOOL_SECRETS_FILE": str(secrets_file()), "ROLLOUTPOOL_ALLOWED_TARGETS": "127.0.0.1"} | redis
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "my_tools.py").write_text(PLUGIN)
    with ExitStack() as stack:
        start = stack.enter_context
        images = {name: start(container_of(name, tmp_path, SERVICES[name], tmp_path / "plugins")) for name in NAMES}
        processes = ExitStack()
        with processes:
            run = processes.enter_context
            keys = {"ROLLOUTPOOL_API_KEYS": entry.entry(), "ROLLOUT_SERVER_PORT": str(api_port)}
            run(images["api"].running(tmp_path / "api.log", **keys, **shared))
            tools = {"ROLLOUTPOOL_PLUGINS": "my_tools", "ROLLOUTPOOL_TOKENIZERS": TINY}
            run(images["worker"].running(tmp_path / "worker.log", **tools, **shared))
            flower = {"ROLLOUTPOOL_FLOWER_PORT": str(flower_port), "ROLLOUTPOOL_FLOWER_AUTH": "user:password"}
            run(images["flower"].running(tmp_path / "flower.log", **flower, **redis))
            eventually(lambda: answers(f"{url}/readyz"), seconds=240)
            trainer = run(
                subprocess.Popen(
                    [Path(sys.executable).with_name("rolloutpool"), "mock-trainer", "--ports", "0", "--json"],
                    env=os.environ | caller,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            processes.callback(trainer.terminate)
            assert trainer.stdout is not None
            document = read_document("mock-trainer", trainer.stdout.readline())
            lines = [{"messages": [{"role": "user", "content": text}]} for text in calculator_prompts(ROLLOUTS)]
            submitted = images["command"].run(
                *("rolloutpool", "submit", "-", "--tokenizer", TINY, "--trainer", document["urls"][0], "--wait"),
                *("--defaults", '{"callback_api_key": "encrypted by one image, opened by another"}', "--json"),
                stdin="".join(json.dumps(line) + "\n" for line in lines),
                **caller,
            )
            assert submitted.returncode == 0, submitted.stderr
            ended = json.loads(submitted.stdout)
            assert (ended["ended"], ended["completed"], ended["reasons"]) == (ROLLOUTS, ROLLOUTS, {})
            workers = images["command"].run("rolloutpool", "workers", "--json", **caller)
            (worker,) = json.loads(workers.stdout)["workers"]
            assert "shout" in worker["tools"]
            eventually(lambda: answers(f"http://127.0.0.1:{flower_port}/healthcheck"), seconds=60)
        for name, image in images.items():
            # Compose mounts a volume at the second path, for tokenizers.
            left_out = "( -path /proc -o -path /var/cache/huggingface ) -prune"
            written = image.run("find", "/", "-xdev", *left_out.split(), "-o", "-user", str(UID), "-print")
            assert written.stdout == "", name
