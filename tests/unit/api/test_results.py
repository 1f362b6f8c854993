"""Spliced pages are what a model would have written."""

from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import pytest

from rolloutpool_api.errors import BadCursor
from rolloutpool_api.results import CHUNK, Page, check_cursor, read_page
from rolloutpool_api.services import ApiServices
from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import ResultItem, ResultPage, RolloutResult
from rolloutpool_common.store.records import ResultSlice


def items(count: int) -> list[ResultItem]:
    return [
        ResultItem(
            cursor=f"{i + 1}-0",
            result=RolloutResult(
                uid=f"b-{i}",
                rollout_id='é"\\',
                batch_id="b",
                index=i,
                status=RolloutStatus.COMPLETED,
                finish_reason=FinishReason.STOP,
            ),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("complete", [False, True])
def test_json(count: int, complete: bool) -> None:
    models = items(count)
    page = Page([item.model_dump_json().encode() for item in models], f"{count}-0", complete)
    assert (
        page.json().decode() == ResultPage(items=models, next_cursor=f"{count}-0", complete=complete).model_dump_json()
    )


def test_ndjson() -> None:
    models = items(2)
    page = Page([item.model_dump_json().encode() for item in models], "2-0", True)
    assert [ResultItem.model_validate_json(line) for line in page.ndjson().splitlines()] == models
    assert Page([], "0", False).ndjson() == b""


@pytest.mark.parametrize("cursor", ["0", "1.1731-0", "12.1763700000000-12"])
def test_good_cursors(cursor: str) -> None:
    assert check_cursor(cursor) == cursor


@pytest.mark.parametrize(
    "cursor", ["", "1", "-", "+", "$", "0-", "1-0", ".1-0", "1.1", "1.1-0\n", "1.\u0661-0", "1" * 16 + ".1-0"]
)
def test_bad_cursors(cursor: str) -> None:
    with pytest.raises(BadCursor):
        check_cursor(cursor)


class Slices:
    """A store with these slices of results, which notes at which cursors it was asked."""

    def __init__(self, *slices: ResultSlice) -> None:
        self._slices = {"0": slices[0]} | {before.next_cursor: after for before, after in pairwise(slices)}
        self.asked: list[str] = []

    async def results(self, batch_id: str, cursor: str, limit: int) -> ResultSlice:
        self.asked.append(cursor)
        return self._slices.get(cursor, ResultSlice([], cursor, False))

    async def page(self, limit: int = 1000) -> Page:
        signals = SimpleNamespace(watch=lambda batch_id: nullcontext())
        services = SimpleNamespace(store=SimpleNamespace(batches=self, signals=signals))
        return await read_page(cast(ApiServices, services), "b", "0", limit=limit, wait_s=0)


def slice_of(count: int, cursor: str) -> ResultSlice:
    return ResultSlice([(cursor, b"{}")] * count, cursor, False)


async def test_a_slice_that_is_not_full_is_the_last_that_is_read() -> None:
    store = Slices(slice_of(CHUNK, "1.1-0"), slice_of(3, "1.2-0"), slice_of(3, "1.3-0"))
    page = await store.page()
    assert (len(page.items), page.next_cursor) == (CHUNK + 3, "1.2-0")
    assert store.asked == ["0", "1.1-0"]
