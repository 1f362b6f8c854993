"""A real vLLM over a model that calls its tool, and a pool beside it (`make test-vllm`)."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.vllm.server import ENVIRONMENT, PYTHON, VllmServer

from rolloutpool_common.rendering import TINY, load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_trainer import LocalPool, callback_app, serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

VERSIONS = ("1", "2")
CONTEXT = 320
"""The prompts have about 200 ids."""
LESSONS = 200
TRAIN_SECONDS = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not (ENVIRONMENT / ".complete").exists():
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs vLLM: make test-vllm"))


@pytest.fixture(scope="session")
def pool() -> Iterator[LocalPool]:
    with LocalPool(workers=2, flower=False, door=True, tokenizers=[TINY]) as running:
        yield running


def question(n: int) -> str:
    """Asks for a sum."""
    return f"What is {n % 97} + {n * 31 % 89}?"


@pytest.fixture(scope="session")
def weights(pool: LocalPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of two versions of a model, which has learnt from rollouts of the scripted policy."""
    tokenizer, folder = load_tokenizer(TINY), tmp_path_factory.mktemp("weights")
    app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, tools=pool.url, only=["add"])
    rollouts = [{"messages": [{"role": "user", "content": question(n)}]} for n in range(LESSONS)]
    with pool.client() as client, serve_callback(app, ports=[0]) as trainer:
        batch = client.submit(rollouts, defaults={"tokenizer_name": TINY, "tools": ["add"]}, trainer=trainer.urls)
        samples = [sample for rollout in batch.results() for sample in rollout.samples]
    fields = ("prompt_ids", "response_ids", "response_mask")
    rows = folder / "rows.json"
    rows.write_text(json.dumps([{name: list(getattr(sample, name)) for name in fields} for sample in samples]))
    found = {version: folder / version for version in VERSIONS}
    subprocess.run(
        [PYTHON, Path(__file__).with_name("model.py"), "train", rows, *found.values()],
        check=True,
        timeout=TRAIN_SECONDS,
    )
    for one in found.values():
        shutil.copytree(TINY_TOKENIZER, one, dirs_exist_ok=True)
    return found


@pytest.fixture(scope="session")
def vllm(weights: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """One with `/inference/v1/generate`; tests may give it other weights."""
    server = VllmServer(weights["1"], tmp_path_factory.mktemp("vllm") / "log", ["--enable-scale-out"])
    yield server
    server.kill()


@pytest.fixture(scope="session")
def small(weights: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """One with `/v1/completions` alone, a key, and little context."""
    log = tmp_path_factory.mktemp("small") / "log"
    server = VllmServer(weights["1"], log, ["--max-model-len", str(CONTEXT)], key="sesame")
    yield server
    server.kill()
