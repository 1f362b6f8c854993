"""The calls by which people and their tools look at what a pool has done: lists and summaries, no tokens to train on.

As in `calls`, each function makes a `Call` without any network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rolloutpool_common.protocol.batch import BatchState
from rolloutpool_common.protocol.batch_list import BatchList
from rolloutpool_common.protocol.history import RolloutHistory
from rolloutpool_common.protocol.rows import RowPage, SummaryPage
from rolloutpool_common.protocol.token_pieces import TokenPieces
from rolloutpool_trainer.client.calls import READ_SECONDS, Call, read_model, resource


@dataclass(frozen=True, kw_only=True)
class WantedBatches:
    """Says which batches are asked for; the fields are the arguments of `RolloutClient.batches`."""

    state: BatchState | str | None = None
    run: str | None = None
    labels: Mapping[str, str] | None = None
    v1: bool = False
    owner: str | None = None


def batch_list(cursor: str | None, limit: int, wanted: WantedBatches) -> Call[BatchList]:
    """`GET /v1/batches`; the answer is a page of it, of at most 1000 batches."""
    given: dict[str, object] = {"cursor": cursor, "limit": min(limit, 1000)}
    given |= {"state": wanted.state, "run": wanted.run, "owner": wanted.owner}
    params: dict[str, str | list[str]] = {name: str(value) for name, value in given.items() if value is not None}
    if wanted.labels:
        params["label"] = [f"{name}={value}" for name, value in wanted.labels.items()]
    if wanted.v1:
        params["v1"] = "true"
    return Call(method="GET", path="/v1/batches", params=params, read=read_model(BatchList))


def rows(
    batch_id: str, cursor: str | None, *, fields: Sequence[str] | None, where: Sequence[str], sort: str
) -> Call[RowPage]:
    """`GET /v1/batches/{id}/rollouts`; the answer is a page of the batch's table.

    `where` are conditions that all must be true: `turns>3`. `sort` is a field; `-` in front puts the largest first.
    """
    params: dict[str, str | list[str]] = {"sort": sort, "where": list(where), "limit": "10000"}
    if fields is not None:
        params["fields"] = ",".join(fields)
    if cursor is not None:
        params["cursor"] = cursor
    return Call(method="GET", path=f"{resource('batches', batch_id)}/rollouts", params=params, read=read_model(RowPage))


def summaries(batch_id: str, cursor: str, *, wait: float) -> Call[SummaryPage]:
    """`GET /v1/batches/{id}/results?view=summary`: a page of up to 1000 rows behind `cursor`.

    The pool may hold the request for `wait` seconds, until a rollout has ended.
    """
    return Call(
        method="GET",
        path=f"{resource('batches', batch_id)}/results",
        params={"view": "summary", "cursor": cursor, "limit": "1000", "wait": f"{wait:g}"},
        read=read_model(SummaryPage),
        # The pool may begin to answer only when `wait` is over.
        read_seconds=wait + READ_SECONDS,
    )


def token_pieces(tokenizer_sha256: str) -> Call[TokenPieces]:
    """`GET /v1/tokenizers/{sha}/pieces`; takes the hash in a result's `tokenizer`."""
    path = f"{resource('tokenizers', tokenizer_sha256)}/pieces"
    return Call(method="GET", path=path, read=read_model(TokenPieces))


def history(uid: str) -> Call[RolloutHistory]:
    """`GET /v1/rollouts/{uid}/history`; takes the pool's uid only."""
    return Call(method="GET", path=f"{resource('rollouts', uid)}/history", read=read_model(RolloutHistory))
