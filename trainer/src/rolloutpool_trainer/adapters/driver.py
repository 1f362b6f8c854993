"""Runs rollouts for a framework that asks for them, and gives the results back in the order of the request.

1. All items of a request are one batch.
2. Those that failed by the infrastructure, or expired, are submitted again, up to `retries` times.
3. If the caller is cancelled, so is the batch: nobody would take its results.

A rollout that fails all the same is returned as it is. It is no sample with reward 0; each adapter says what it does.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rolloutpool_trainer.client.aio import AsyncRolloutClient
from rolloutpool_trainer.client.aio_batch import AsyncBatch
from rolloutpool_trainer.client.groups import select
from rolloutpool_trainer.client.results import FinishedRollout
from rolloutpool_trainer.client.transport import DEFAULT_TIMEOUT


class PoolDriver:
    """A pool, and how its rollouts are to be run."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        retries: int = 2,
        **options: Any,
    ) -> None:
        """Makes a driver; nothing is sent yet.

        Args:
            url: Where the pool's API is.
            api_key: None means the value of ROLLOUTPOOL_API_KEY.
            timeout: Seconds for which a pool is asked again that does not answer.
            retries: How often a rollout may be run again.
            **options: Keyword arguments of `submit`: `trainer` (where the policy is served), `defaults`, `run` …
        """
        self._url, self._api_key, self._timeout = url, api_key, timeout
        self._retries, self._options = retries, options

    async def run(self, items: Sequence[Mapping[str, Any]]) -> list[FinishedRollout]:
        """Runs rollouts to their end.

        Args:
            items: As `submit` takes them, without `n`.

        Returns:
            A result for each item, in their order.

        Raises:
            ClientError: The pool refused, or did not answer in time.
        """
        ended: list[FinishedRollout | None] = [None] * len(items)
        async with AsyncRolloutClient(self._url, self._api_key, self._timeout) as client:
            for _ in range(1 + self._retries):
                missing = [i for i, result in enumerate(ended) if result is None or select([result]).refillable]
                if not missing:
                    break
                batch = await client.submit([items[i] for i in missing], **self._options)
                for result in await _read(batch):
                    ended[missing[result.index]] = result
        return [result for result in ended if result is not None]

    def run_blocking(self, items: Sequence[Mapping[str, Any]]) -> list[FinishedRollout]:
        """Does the same for a framework that is not asynchronous; see `run`."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run(items))
        # A loop that is blocked by its own caller can run nothing, so another thread has to.
        with ThreadPoolExecutor(1) as other:
            return other.submit(asyncio.run, self.run(items)).result()


async def _read(batch: AsyncBatch) -> list[FinishedRollout]:
    try:
        return [result async for result in batch.results()]
    except asyncio.CancelledError:
        await asyncio.shield(batch.cancel())
        raise


def conversation(prompt: Any) -> list[dict[str, Any]]:
    """Makes messages of a framework's prompt; text is one user message."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(message) for message in prompt]


def is_sample(result: FinishedRollout) -> bool:
    """Whether a result may be trained on: it completed, or the policy itself made it fail."""
    return bool(select([result]).rollouts)
