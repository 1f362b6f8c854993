"""The examples and what the quickstart shows, run as a reader would: as programs of their own.

The examples run on one pool. A start of a pool takes seconds of CPU, and is the same in each of them.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer import LocalPool, RolloutClient, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "docs" / "quickstart.md"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LONGEST = 80
SHOWN = {
    "agent": "line 1: main, 3 turns",
    "calculator": "alignment exact",
    "demonstrations": "2 rows, ",
    "isolated_tool": "was ended by SIGSEGV",
    "single_turn": "all trained",
    "text_game": "-> reward 0.",
    "tool_environment": "-> reward 1.0, after each turn",
    "trainer_end_to_end": "16 of 16 rollouts",
}


PLUGINS = ("isolated_tool", "text_game", "tool_environment")
"""Examples that the workers import."""


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    """A pool with all that an example asks its own pool for."""
    env = {"ROLLOUTPOOL_PLUGINS": ",".join(PLUGINS), "PYTHONPATH": str(ROOT / "examples")}
    with LocalPool(workers=2, flower=False, door=True, env=env) as running:
        yield running


def run(cwd: Path, *program: str) -> str:
    """Standard output of a program that must succeed."""
    done = subprocess.run([sys.executable, *program], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_example_runs(example: Path, pool: LocalPool) -> None:
    """What starts a pool of its own is the program of the quickstart, and that of the README."""
    assert SHOWN[example.stem] in run(ROOT, "-m", "tests.support.example_program", pool.url, str(example))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_example_is_short(example: Path) -> None:
    assert len(example.read_text().splitlines()) < LONGEST


def test_the_program_of_the_quickstart_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", QUICKSTART.read_text(), re.MULTILINE | re.DOTALL)
    program = tmp_path / "first.py"
    program.write_text(code)
    lines = run(tmp_path, str(program)).splitlines()
    assert len(lines) == 8
    for line in lines:
        trained, total = map(int, re.findall(r"\d+", line)[-2:])
        assert 0 < trained < total


def test_v1_request_of_the_quickstart_is_answered(
    pool: LocalPool, client: RolloutClient, tokenizer: ChatTokenizer
) -> None:
    assert "@examples/rollout_v1.json" in QUICKSTART.read_text()
    request = json.loads((ROOT / "examples" / "rollout_v1.json").read_text())
    app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, tools=pool.url)
    with serve_callback(app, [0]) as trainer:
        response = client.rollout({**request, "server_url": trainer.url})
    assert response.status == "COMPLETED", response.error_message
    assert "152" in str(response.final_messages[-1].content)


def test_the_recorded_part_of_the_quickstart_is_what_a_run_says(tmp_path: Path) -> None:
    written = tmp_path / "quickstart.md"
    written.write_text(QUICKSTART.read_text())
    subprocess.run([sys.executable, str(ROOT / "scripts" / "record_quickstart.py"), str(written)], check=True)
    assert written.read_text() == QUICKSTART.read_text(), "run scripts/record_quickstart.py and read what has changed"
