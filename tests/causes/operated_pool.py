"""The pool of a new operator: `rolloutpool up` as a process, and the commands that one types beside it."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from tests.support.ports import free_port

from rolloutpool_common.rendering import TINY
from rolloutpool_trainer.testing import calculator_prompts

COMMAND = str(Path(sys.executable).with_name("rolloutpool"))
GROUPS = 4
SIZE = 4


@dataclass(frozen=True)
class OperatedPool:
    """What `rolloutpool up` has printed."""

    url: str
    flower: str
    flower_auth: tuple[str, str]
    """User and password."""
    folder: Path

    def command(self, *arguments: str) -> str:
        """Runs a command against this pool, and returns what it printed."""
        done = subprocess.run(
            [COMMAND, *arguments, "--url", self.url], capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    def submit(self, trainer: str, manner: str) -> str:
        """Submits `GROUPS` groups of `SIZE` rollouts with the default options, and returns the batch's id."""
        prompts = calculator_prompts(GROUPS, seed=7)
        items = [
            {"messages": [{"role": "user", "content": prompt}], "group": f"g{index}", "n": SIZE}
            for index, prompt in enumerate(prompts)
        ]
        file = self.folder / "rollouts.jsonl"
        file.write_text("".join(f"{json.dumps(item)}\n" for item in items))
        options = ("--tokenizer", TINY, "--trainer", trainer, "--label", f"trainer={manner}", "--run", "causes")
        return self.command("submit", str(file), *options).strip()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series with these labels."""
        text = httpx.get(f"{self.url}/metrics", trust_env=False).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def document(self, path: str) -> Any:
        """What the API answers to a GET."""
        answer = httpx.get(f"{self.url}{path}", trust_env=False)
        answer.raise_for_status()
        return answer.json()


@contextmanager
def operated_pool(folder: Path) -> Iterator[OperatedPool]:
    """Starts a pool with the default options, except for ports that are free and a state of its own."""
    options = ("--port", str(free_port()), "--flower-port", str(free_port()), "--state", str(folder / "state"))
    with (folder / "up.log").open("w+") as log:
        process = subprocess.Popen([COMMAND, "up", *options], stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield _read(process, folder)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(90)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _read(process: "subprocess.Popen[str]", folder: Path) -> OperatedPool:
    assert process.stdout is not None
    output = ""
    # Its last line but one names the logs; "running" goes to standard error.
    for line in process.stdout:
        output += line
        if line.startswith("logs"):
            break
    else:
        raise AssertionError(f"the pool did not start: {output}{(folder / 'up.log').read_text()}")
    api = re.search(r"^API +(http\S+)", output, re.M)
    flower = re.search(r"^Flower +(http\S+) +\(user:password in (\S+)\)", output, re.M)
    assert api is not None, output
    assert flower is not None, output
    user, _, password = Path(flower[2]).read_text().strip().partition(":")
    return OperatedPool(api[1], flower[1], (user, password), folder)
