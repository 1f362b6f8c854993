"""Runs each completed rollout of a campaign again from its result: it must come out alike, after kills too."""

import asyncio
from pathlib import Path

from tests.chaos.record import entries
from tests.chaos.verdict import Verdict

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import TokenizerCache
from rolloutpool_worker.queue.app import load_plugins
from rolloutpool_worker.replay.run import Replayer
from rolloutpool_worker.settings import WorkerSettings


def replay_completed(folder: Path, verdict: Verdict) -> None:
    """Adds to a verdict what replays have shown, of the same logs."""
    # As a worker does: an engine's first prompt shows the tools, the calculator's too. No Redis is asked.
    load_plugins(WorkerSettings(redis_url="redis://127.0.0.1"))
    asyncio.run(_replay(folder, verdict))


async def _replay(folder: Path, verdict: Verdict) -> None:
    replayer = Replayer(TokenizerCache(4))
    for entry in entries(folder / "client.jsonl"):
        if entry["event"] != "result" or entry["result"]["status"] != "completed":
            continue
        result = RolloutResult.model_validate(entry["result"])
        report = await replayer.run(result)
        verdict.replayed += 1
        if not report.same:
            found = [f"{d.what} at turn {d.turn}" for d in report.differences[:3]]
            why = report.lacks or "; ".join([*found, *report.notes])
            verdict.not_reproduced.append(f"{result.uid} ({why})")
