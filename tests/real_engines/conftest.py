"""Real engines over a model that calls its tool, and a pool beside them (`make test-vllm`, `make test-sglang`)."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.real_engines.server import BUILD, TORCH, EngineServer, SglangServer, VllmCompletionsServer, VllmServer

from rolloutpool_common.rendering import TINY, load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_trainer import LocalPool, callback_app, serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

VERSIONS = ("1", "2")
CONTEXT = 400
"""Of the engines that are `SMALL`; the prompts have about 200 ids."""
LESSONS = 200
TRAIN_SECONDS = 900


@pytest.fixture(scope="session")
def pool() -> Iterator[LocalPool]:
    with LocalPool(workers=2, flower=False, door=True, tokenizers=[TINY]) as running:
        yield running


def question(n: int) -> str:
    """Asks for a sum."""
    return f"What is {n % 97} + {n * 31 % 89}?"


@pytest.fixture(scope="session")
def lessons(pool: LocalPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of what a model learns from: rollouts of the scripted policy."""
    tokenizer = load_tokenizer(TINY)
    app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, tools=pool.url, only=["add"])
    rollouts = [{"messages": [{"role": "user", "content": question(n)}]} for n in range(LESSONS)]
    with pool.client() as client, serve_callback(app, ports=[0]) as trainer:
        batch = client.submit(rollouts, defaults={"tokenizer_name": TINY, "tools": ["add"]}, trainer=trainer.urls)
        samples = [sample for rollout in batch.results() for sample in rollout.samples]
    fields = ("prompt_ids", "response_ids", "response_mask")
    rows = tmp_path_factory.mktemp("lessons") / "rows.json"
    rows.write_text(json.dumps([{name: list(getattr(sample, name)) for name in fields} for sample in samples]))
    return rows


@pytest.fixture(scope="session")
def trained(lessons: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Path]]:
    """Trains a model of a kind, once; returns the folders of two versions of it."""

    @cache
    def train(kind: str) -> dict[str, Path]:
        folder = tmp_path_factory.mktemp("weights")
        found = {version: folder / version for version in VERSIONS}
        model = Path(__file__).with_name("model.py")
        subprocess.run([TORCH, model, kind, lessons, *found.values()], check=True, timeout=TRAIN_SECONDS)
        for one in found.values():
            shutil.copytree(TINY_TOKENIZER, one, dirs_exist_ok=True)
        return found

    return train


@pytest.fixture(scope="session")
def weights(trained: Callable[[str], dict[str, Path]]) -> dict[str, Path]:
    """The folders of two versions of the model that most tests use."""
    return trained("dense")


ENGINES: dict[str, tuple[type[EngineServer], str, list[str], str | None]] = {
    "vllm": (VllmServer, "vllm", [], None),
    "vllm, completions": (VllmCompletionsServer, "vllm", ["--max-model-len", str(CONTEXT)], "sesame"),
    "sglang": (SglangServer, "sglang", ["--context-length", str(CONTEXT)], "sesame"),
    "sglang, experts": (SglangServer, "sglang", ["--enable-return-routed-experts"], None),
}
"""Class, environment, options, key."""
SMALL = ("vllm, completions", "sglang")
MIXED = ("sglang, experts",)
"""Their model has a mixture of experts; where two are worth the same to an id, rounding decides."""


@pytest.fixture(scope="session", params=[name for name in ENGINES if name not in MIXED])
def engine(
    request: pytest.FixtureRequest,
    trained: Callable[[str], dict[str, Path]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[EngineServer]:
    """One of them after the other. Tests may give it other weights, and kill it."""
    kind, _, options, key = ENGINES[request.param]
    first = trained("experts" if request.param in MIXED else "dense")["1"]
    server = kind(first, tmp_path_factory.mktemp("engine") / "log", options, key=key)
    yield server
    server.kill()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and isinstance(item, pytest.Function):
            environment = ENGINES[str(item.callspec.params["engine"])][1]
            # Each process of `make test` would train a model, and start engines of its own.
            if "PYTEST_XDIST_WORKER" in os.environ or not (BUILD / environment / ".complete").exists():
                item.add_marker(pytest.mark.skip(reason=f"needs an engine: make test-{environment}"))
