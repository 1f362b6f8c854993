"""The blocking client of a pool. Generated from `aio.py` by `make generate`; edit that file, not this one.

A client may be shared by threads. What it sends is in `calls`.
"""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, Unpack

import httpx

from rolloutpool_common.protocol.batch import (
    BatchState,
    Priority,
    RolloutItem,
    TrainerPorts,
    TrainerUrls,
)
from rolloutpool_common.protocol.batch_list import BatchSummary
from rolloutpool_common.protocol.groups import GroupPolicy
from rolloutpool_common.protocol.health import Health
from rolloutpool_common.protocol.history import RolloutHistory
from rolloutpool_common.protocol.operations import DeadLetters, EndpointCheck
from rolloutpool_common.protocol.options import RolloutOptions
from rolloutpool_common.protocol.rollouts import RolloutView
from rolloutpool_common.protocol.token_pieces import TokenPieces
from rolloutpool_common.protocol.tools import ToolDefinition
from rolloutpool_common.protocol.v1.request import RolloutRequest
from rolloutpool_common.protocol.v1.response import RolloutResponse
from rolloutpool_common.protocol.workers import Worker
from rolloutpool_trainer.client import calls, views
from rolloutpool_trainer.client.retry import RetryPolicy
from rolloutpool_trainer.client.submission import Submission
from rolloutpool_trainer.client.sync_batch import Batch
from rolloutpool_trainer.client.transport import DEFAULT_TIMEOUT, connection_settings, key_from_environment, timeouts
from rolloutpool_trainer.composition import SubmitOptions, SyncClientParts


class RolloutClient(SyncClientParts):
    """A connection to a pool. Close it, or use it as a context manager."""

    def __init__(self, base_url: str, api_key: str | None = None, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Makes a client; nothing is sent yet.

        Args:
            base_url: Where the pool's API is, e.g. `http://pool:9000`.
            api_key: Sent as bearer token; None means the value of ROLLOUTPOOL_API_KEY.
            timeout: Seconds for which the client asks a pool again that does not answer.
        """
        self.base_url = base_url.rstrip("/")
        self._timeout = timeout
        self._settings = connection_settings(self.base_url, api_key or key_from_environment())
        self._idle: list[httpx.Client] = []

    def submit(
        self,
        rollouts: Sequence[RolloutItem | Mapping[str, Any]],
        *,
        defaults: RolloutOptions | Mapping[str, Any] | None = None,
        trainer: TrainerUrls | TrainerPorts | Mapping[str, Any] | Sequence[str] | str | None = None,
        priority: Priority | str = Priority.DEFAULT,
        label: str | None = None,
        labels: Mapping[str, str] | None = None,
        run: str | None = None,
        weight: int = 1,
        group: GroupPolicy | Mapping[str, Any] | None = None,
        lease_seconds: float | None = None,
        idempotency_key: str | None = None,
        **asks: Unpack[SubmitOptions],
    ) -> Batch:
        """Submits a batch. Once this returns, the batch is durable.

        Args:
            rollouts: Up to 10,000, each with `messages` and what differs from `defaults`.
            defaults: What holds for every rollout.
            trainer: Callback endpoints: a URL, several, or `{"host", "base_port", "workers"}`.
            priority: Which queue it waits in.
            label: What people shall read beside the batch in lists, such as `step 12`; it is `labels["label"]`.
            labels: Free; shown with the batch.
            run: Which training run it belongs to; runs share the workers by `weight`.
            weight: How many of its rollouts start for each one of a run with weight 1.
            group: When a group may be taken although it is not complete: `{"min_usable", "size", "late"}`.
            lease_seconds: The batch is cancelled when nobody has read it with this key for so long.
            idempotency_key: The same key with the same batch gives the same batch. None means a random key, so that a
                request that is lost on the way can be sent again without running twice.
            **asks: Of capabilities: `delivery` says where results are pushed, besides being kept for reading.
                `max_staleness` says how many versions the run may be ahead of the oldest weights that sampled a rollout
                (see `announce`), and `on_stale` what happens to one that is older: `drop` (the default), `finish` or
                `restart`.

        Returns:
            The batch, with the uids of its rollouts in `accepted`.

        Raises:
            BatchRejected: Something in it is wrong; `faults` lists all of it.
            IdempotencyConflict: The key was used for another batch.
        """
        options: dict[str, Any] = {
            "defaults": defaults,
            "trainer": trainer,
            "priority": priority,
            "labels": labels if label is None else {**(labels or {}), "label": label},
            "run": run,
            "weight": weight,
            "lease_seconds": lease_seconds,
            **asks,
        }
        key = idempotency_key or secrets.token_hex(16)
        accepted = self.ask(calls.submit(rollouts, options, idempotency_key=key, group=group))
        return Batch(self, accepted.batch_id, accepted, Submission(rollouts, options))

    def batch(self, batch_id: str) -> Batch:
        """Names a batch that was submitted before, by this process or another. Nothing is sent yet."""
        return Batch(self, batch_id)

    def batches(
        self,
        *,
        limit: int = 100,
        state: BatchState | str | None = None,
        run: str | None = None,
        labels: Mapping[str, str] | None = None,
        v1: bool = False,
        owner: str | None = None,
    ) -> list[BatchSummary]:
        """Lists this key's batches, the newest first.

        Args:
            limit: At most so many.
            state: Only those in this state: `running` or `complete`.
            run: Only those of this run.
            labels: Only those with all of these labels.
            v1: Protocol v1's rollouts, each a batch of one, instead of batches.
            owner: Whose; another key's batches take the scope `admin`, which sees everybody's by default.
        """
        wanted = views.WantedBatches(state=state, run=run, labels=labels, v1=v1, owner=owner)
        found: list[BatchSummary] = []
        cursor: str | None = None
        while len(found) < limit:
            page = self.ask(views.batch_list(cursor, limit - len(found), wanted))
            found += page.batches
            if (cursor := page.next_cursor) is None:
                break
        return found

    def rollout(self, request: RolloutRequest | Mapping[str, Any]) -> RolloutResponse:
        """Runs one rollout by protocol v1 and waits for its end, which `status` tells from an error."""
        return self.ask(calls.rollout_v1(request))

    def get_rollout(self, rollout_id: str) -> RolloutView:
        """Asks for one rollout by its uid or by the caller's own id. Its `result` is there once it has ended."""
        return self.ask(calls.rollout_view(rollout_id))

    def history(self, uid: str) -> RolloutHistory:
        """Asks which workers had a rollout, and why it was queued again. Takes the uid only."""
        return self.ask(views.history(uid))

    def token_pieces(self, tokenizer_sha256: str) -> TokenPieces:
        """Asks what each id of a tokenizer reads; for tokenizers that made kept rollouts of this key.

        Args:
            tokenizer_sha256: As in a result's `tokenizer`.
        """
        return self.ask(views.token_pieces(tokenizer_sha256))

    def cancel_rollout(self, rollout_id: str) -> bool:
        """Ends one rollout, by its uid or by the caller's own id.

        Returns:
            False if no rollout has that id yet: the first that comes under it within 10 minutes is cancelled.
        """
        return self.ask(calls.cancel_rollout(rollout_id))

    def tools(self) -> list[ToolDefinition]:
        """Asks which tools the workers have, as a trainer renders them into its prompts."""
        return self.ask(calls.tools())

    def workers(self) -> list[Worker]:
        """Asks what each worker announces of itself, oldest worker first."""
        return (self.ask(calls.workers())).workers

    def preflight(self, server_urls: Sequence[str]) -> list[EndpointCheck]:
        """Has a worker try these callback endpoints; the answer has one check per URL, in the same order."""
        return self.ask(calls.preflight(server_urls))

    def dead_letters(self) -> DeadLetters:
        """Asks for the uids of rollouts that killed their workers, and of pushes that were given up."""
        return self.ask(calls.dead_letters())

    def requeue(self, uid: str) -> Batch:
        """Runs a dead rollout once more, as a batch of its own."""
        accepted = self.ask(calls.requeue(uid))
        return Batch(self, accepted.batch_id, accepted)

    def health(self) -> Health:
        """Asks whether the API answers, whatever the state of Redis and workers."""
        return self.ask(calls.health())

    def ask(self, call: calls.Call[calls.T]) -> calls.T:
        """Sends one call and reads its answer. Asks again while the pool is away, until the client's time-out.

        Raises:
            PoolUnavailable: The pool did not answer within the time-out.
            ClientError: The pool refused; the class says why.
        """
        retries = RetryPolicy(call, self.base_url, self._timeout)
        while True:
            try:
                with self._connection() as http:
                    response = http.request(
                        call.method,
                        call.path,
                        params=call.params or None,
                        headers=call.headers,
                        content=call.body,
                        timeout=timeouts(call),
                    )
            except httpx.TransportError as error:
                delay: float | None = retries.after_error(error)
            else:
                delay = retries.after_answer(response)
                if delay is None:
                    return call.result(response)
            time.sleep(delay or 0.0)

    @contextmanager
    def _connection(self) -> Iterator[httpx.Client]:
        try:
            http = self._idle.pop()
        except IndexError:
            http = httpx.Client(**self._settings)
        try:
            yield http
        # A request that was cancelled or failed may leave half an answer on its connection, so it is not used again.
        except BaseException:
            http.close()
            raise
        self._idle.append(http)

    def close(self) -> None:
        """Closes all connections; call it when no call is in flight."""
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
