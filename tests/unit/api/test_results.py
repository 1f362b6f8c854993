"""Spliced pages are what a model would have written."""

import pytest

from rolloutpool_api.errors import BadCursor
from rolloutpool_api.results import Page, check_cursor
from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import ResultItem, ResultPage, RolloutResult


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
