"""Rollouts whose program a runner starts: a small one that calls the model and runs its tool."""

import sys
from pathlib import Path
from typing import Any

from tests.support.pool import Pool

from rolloutpool_common.protocol.result import RolloutResult

PROGRAM = Path(__file__).parent / "small_program.py"
PYTHON = str(Path(sys.executable).resolve())
"""The interpreter itself: a sandbox sees nothing below /tmp, where the environment may be."""
ENV = {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}"}


async def ran(pool: Pool, led_url: str, *arguments: str, prompt: str = "do 2", **choice: Any) -> RolloutResult:
    """Has a runner start the program; returns the rollout's result."""
    command = [PYTHON, "{home}/program.py", "{prompt}", *arguments]
    files = {"program.py": PROGRAM.read_text()}
    shared = {
        "server_url": led_url,
        "messages": [{"role": "user", "content": prompt}],
        "harness": {"command": command, "env": ENV, "files": files, **choice},
        "max_tokens_total": 100_000,
    }
    (uid,) = await pool.submit(shared=shared, asks={"harness": True})
    return await pool.result(uid, 40)
