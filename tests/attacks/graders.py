"""Graders for a pool under attack, beside those of `tests/support/graders.py`; ROLLOUTPOOL_PLUGINS names both."""

import asyncio
import os
import time
from typing import Any

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_worker.graders import Grade, grader


@grader()
async def counts(rollout: RolloutResult, options: Any) -> Grade:
    """Counts the sampled tokens, on the event loop."""
    return Grade(float(rollout.response_tokens), {"messages": float(len(rollout.messages))})


@grader()
def counts_apart(rollout: RolloutResult, options: Any) -> Grade:
    """The same, in a child process."""
    return Grade(float(rollout.response_tokens), {"messages": float(len(rollout.messages))})


@grader()
async def crashes(rollout: RolloutResult, options: Any) -> float:
    """Ends its worker, as a segmentation fault in a library would. SIGKILL would count as a death from outside."""
    os._exit(9)


@grader()
async def never(rollout: RolloutResult, options: Any) -> float:
    """Never answers."""
    await asyncio.Event().wait()
    return 0.0


@grader()
def never_apart(rollout: RolloutResult, options: Any) -> float:
    """Never answers, and keeps its child process."""
    while True:
        time.sleep(1)
