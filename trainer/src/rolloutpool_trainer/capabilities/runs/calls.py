"""The calls that steer a run: the version of the newest weights, and pauses. Both clients send them."""

import json

from rolloutpool_common.capabilities.runs.wire import RunState
from rolloutpool_trainer.client.calls import Call, read_model, resource


def read(run: str) -> Call[RunState]:
    """`GET /v1/runs/{run}`."""
    return Call(method="GET", path=resource("runs", run), read=read_model(RunState))


def announce(run: str, version: int | str, *, rollback: bool = False) -> Call[RunState]:
    """`PUT /v1/runs/{run}/policy_version`.

    Args:
        run: The run.
        version: Of the newest weights, a decimal integer.
        rollback: Whether it may be lower than the one before.
    """
    body = json.dumps({"policy_version": version, "rollback": rollback}).encode()
    return Call(
        method="PUT",
        path=f"{resource('runs', run)}/policy_version",
        headers={"Content-Type": "application/json"},
        body=body,
        read=read_model(RunState),
    )


def pause(run: str) -> Call[RunState]:
    """`POST /v1/runs/{run}/pause`."""
    return Call(method="POST", path=f"{resource('runs', run)}/pause", read=read_model(RunState))


def resume(run: str) -> Call[RunState]:
    """`POST /v1/runs/{run}/resume`."""
    return Call(method="POST", path=f"{resource('runs', run)}/resume", read=read_model(RunState))
