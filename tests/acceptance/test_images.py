"""The images without an engine: their commands run a rollout together.

`make test-images` carries out their build stages here, as they stand, in a folder. What is not covered then is what
an engine adds: the base image, the user. `make images` has both, and runs these tests in the images that buildah built.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from tests.support.images import BUILT, NAMES, SERVICES, UNPACK, Image, UnpackedImage, answers, container_of, unpack
from tests.support.ports import free_port
from tests.support.secrets import secrets_file
from tests.support.waiting import eventually

from rolloutpool_common.rendering import TINY, load_tokenizer
from rolloutpool_common.security.api_keys import KeyScope, make_key
from rolloutpool_trainer import RolloutClient, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (BUILT or UNPACK), reason="make images, or make test-images without an engine"),
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Image]]:
    with ExitStack() as stack:
        folders = {name: tmp_path_factory.mktemp(name) for name in NAMES}
        if BUILT:
            yield {name: stack.enter_context(container_of(name, folder)) for name, folder in folders.items()}
        else:
            yield {name: unpack(name, folder) for name, folder in folders.items()}


def healthy(image: Image, service: str, settings: Mapping[str, str], port: int | None = None) -> bool:
    """What Compose's health check of a service says, asked at the port that the service has here."""
    words = SERVICES[service]["healthcheck"]["test"][1:]
    for published in SERVICES[service].get("ports", []):
        words = [word.replace(published.rpartition(":")[2], str(port)) for word in words]
    return image.run(*words, **settings).returncode == 0


def test_images_run_a_rollout(images: Mapping[str, Image], redis_url: str, tmp_path: Path) -> None:
    api_port, flower_port = free_port(), free_port()
    url, flower = f"http://127.0.0.1:{api_port}", f"http://127.0.0.1:{flower_port}"
    redis = {"ROLLOUTPOOL_REDIS_URL": redis_url}
    key, entry = make_key("tests", [KeyScope.SUBMIT, KeyScope.READ])
    shared = {"ROLLOUTPOOL_SECRETS_FILE": str(secrets_file()), "ROLLOUTPOOL_ALLOWED_TARGETS": "127.0.0.1"}
    tokenizer = load_tokenizer(TINY)
    with ExitStack() as stack:
        start = stack.enter_context
        # As in their images they listen on all addresses.
        keys = {"ROLLOUTPOOL_API_KEYS": entry.entry()}
        start(images["api"].running(tmp_path / "api.log", ROLLOUT_SERVER_PORT=str(api_port), **keys, **shared, **redis))
        start(images["worker"].running(tmp_path / "worker.log", ROLLOUTPOOL_TOKENIZERS=TINY, **shared, **redis))
        start(
            images["flower"].running(
                tmp_path / "flower.log",
                ROLLOUTPOOL_FLOWER_PORT=str(flower_port),
                ROLLOUTPOOL_FLOWER_AUTH="user:password",
                **redis,
            )
        )
        eventually(lambda: answers(f"{url}/readyz"), seconds=60)
        app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, tools=url, pool_api_key=key)
        trainer = start(serve_callback(app, [0]))
        client = start(RolloutClient(url, key))
        batch = client.submit(
            [{"rollout_id": "image", "messages": [{"role": "user", "content": "Calculate (15 + 23) * 4"}]}],
            defaults={"tokenizer_name": TINY, "callback_api_key": "encrypted by one image, opened by another"},
            trainer=trainer.urls,
        )
        (result,) = batch.results()
        assert result.status == "completed", result.failure
        assert result.samples[0].response_mask == app.get_session("image").response_mask
        found = images["command"].run("rolloutpool", "doctor", "--json", ROLLOUTPOOL_URL=url, ROLLOUTPOOL_API_KEY=key)
        assert found.returncode == 0, found.stderr
        verdicts = {finding["check"]: finding["verdict"] for finding in json.loads(found.stdout)["findings"]}
        # This key has no scope `admin`.
        assert (verdicts["API"], verdicts["readiness"], verdicts["workers"]) == ("ok", "ok", "not checked")
        eventually(lambda: answers(f"{flower}/healthcheck"), seconds=60)
        # A container may be told of a proxy, which can't reach the container itself.
        proxy = {"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"}
        assert healthy(images["api"], "api", proxy, api_port)
        assert healthy(images["worker"], "worker", redis)
        assert healthy(images["flower"], "flower", proxy, flower_port)
        assert httpx.get(f"{flower}/tasks", trust_env=False).status_code == 401
        assert httpx.get(f"{flower}/tasks", auth=("user", "password"), trust_env=False).status_code == 200
    assert not healthy(images["api"], "api", {}, api_port)
    assert not healthy(images["worker"], "worker", redis)
    assert not healthy(images["flower"], "flower", {}, flower_port)


@pytest.mark.skipif(BUILT, reason="it looks into the folder; the built images have the same pins")
@pytest.mark.parametrize("name", ["api", "worker", "command"])
def test_image_has_all_that_its_packages_ask_for(images: Mapping[str, Image], name: str) -> None:
    image = images[name]
    assert isinstance(image, UnpackedImage)
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run(
        [str(uv), "pip", "check", "--python", str(image.venv / "bin" / "python")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "foreign"),
    [
        ("api", "transformers"),
        ("api", "rolloutpool_worker"),
        ("worker", "fastapi"),
        ("flower", "transformers"),
        ("command", "redis"),
    ],
)
def test_image_lacks_what_is_not_its_own(images: Mapping[str, Image], name: str, foreign: str) -> None:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({foreign!r}) is not None)"
    assert images[name].run("python", "-c", code).returncode == 0


@pytest.mark.parametrize("name", ["api", "worker", "flower"])
def test_image_without_settings_says_which_are_missing(images: Mapping[str, Image], name: str) -> None:
    done = images[name].run()
    assert done.returncode == 2
    assert "ROLLOUTPOOL_REDIS_URL" in done.stderr
    assert "Traceback" not in done.stderr
