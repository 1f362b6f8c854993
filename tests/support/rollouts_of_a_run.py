"""Rollouts of a run, for tests of what a run does to them."""

from typing import Any

from tests.support.batches import new_batch, uids_of
from tests.support.inside_worker import InsideWorker

from rolloutpool_common.capabilities.runs.wire import OnStale

RUN = "job7"
ADD = "<tool_call>\n" + '{"name": "add", "arguments": {"a": 5, "b": 3}}' + "\n</tool_call>"
"""A turn of an imitated engine that calls a tool."""


async def submit_to_run(inside: InsideWorker, url: str, protocol: str = "callback", **options: Any) -> list[str]:
    """Submits a batch of the run, to this endpoint; returns the uids."""
    shared = {"server_url": url, "protocol": protocol, "sampling_params": {"max_tokens": 64}}
    if (limit := options.pop("max_staleness", None)) is not None:
        options["asks"] = {"runs": (limit, options.pop("on_stale", OnStale.DROP))}
    batch = new_batch(options.pop("rollouts", 1), shared=shared, **{"run": RUN, **options})
    await inside.services.store.batches.submit(batch)
    return uids_of(batch)
