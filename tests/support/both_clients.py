"""Both Python clients behind the blocking one's face, so that one test holds both to the same answers."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

from rolloutpool_trainer.client.aio import AsyncRolloutClient
from rolloutpool_trainer.client.aio_batch import AsyncBatch
from rolloutpool_trainer.client.sync import RolloutClient

KINDS = ("blocking", "asyncio")


class _Awaited:
    """Awaits what the methods of an object return, on an event loop of its own."""

    def __init__(self, real: Any, runner: asyncio.Runner) -> None:
        self._real, self._runner = real, runner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        return (lambda *args, **options: self._shown(value(*args, **options))) if callable(value) else value

    def _shown(self, value: Any) -> Any:
        if inspect.isawaitable(value):
            return self._shown(self._runner.run(_result_of(value)))
        if isinstance(value, AsyncIterator):
            return self._items(value)
        return _Awaited(value, self._runner) if isinstance(value, AsyncBatch) else value

    def _items(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        while (item := self._runner.run(_next_of(items))) is not items:
            yield item


async def _result_of(awaited: Any) -> Any:
    return await awaited


async def _next_of(items: AsyncIterator[Any]) -> Any:
    return await anext(items, items)


@contextlib.contextmanager
def opened(kind: str, url: str, api_key: str | None = None, timeout: float = 5.0) -> Iterator[RolloutClient]:
    """Opens a client of this kind, and closes it."""
    if kind == "blocking":
        with RolloutClient(url, api_key, timeout=timeout) as client:
            yield client
        return
    with asyncio.Runner() as runner:
        real = AsyncRolloutClient(url, api_key, timeout=timeout)
        yield cast(RolloutClient, _Awaited(real, runner))
        runner.run(real.close())
