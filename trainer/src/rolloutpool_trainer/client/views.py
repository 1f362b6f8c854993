"""The calls by which people and their tools look at what a pool has done: lists and summaries, no tokens to train on.

As in `calls`, each function makes a `Call` without any network.
"""

from collections.abc import Mapping

from rolloutpool_common.protocol.batch import BatchState
from rolloutpool_common.protocol.batch_list import BatchList
from rolloutpool_trainer.client.calls import Call, read_model

__all__ = ["batch_list"]


def batch_list(
    cursor: str | None,
    limit: int,
    *,
    state: BatchState | str | None,
    run: str | None,
    labels: Mapping[str, str] | None,
    v1: bool,
    owner: str | None,
) -> Call[BatchList]:
    """`GET /v1/batches`; the answer is a page of it.

    Args:
        cursor: Of the page before; None begins with the newest batch.
        limit: Most batches; a page has at most 1000.
        state: Only those in this state.
        run: Only those of this run.
        labels: Only those with all of these labels.
        v1: Protocol v1's rollouts instead of batches.
        owner: Whose batches; another's take the scope `admin`.
    """
    given = {"cursor": cursor, "limit": min(limit, 1000), "state": state, "run": run, "owner": owner}
    params: dict[str, str | list[str]] = {name: str(value) for name, value in given.items() if value is not None}
    if labels:
        params["label"] = [f"{name}={value}" for name, value in labels.items()]
    if v1:
        params["v1"] = "true"
    return Call(method="GET", path="/v1/batches", params=params, read=read_model(BatchList))
