"""The viewer's lanes in a real browser: where the time of each rollout went, and who held the batch."""

import itertools
from typing import Any

import pytest
from playwright.sync_api import Browser
from tests.support.browsers import needs_browser
from tests.support.viewed_batches import BATCH, answers, table
from tests.support.viewed_pool import viewed

pytestmark = needs_browser


def lanes(browser: Browser, page: dict[str, Any]) -> Any:
    with viewed(browser) as pool:
        pool.answers["/v1/batches"] = {"batches": [], "next_cursor": None}
        pool.open()
        return pool.module("lane_figures.js", "m.lanesOf(v)", page)


def test_a_lane_has_no_gap_and_ends_with_its_rollout(browser: Browser) -> None:
    rows = table(100)
    found = lanes(browser, rows)
    columns = rows["columns"]
    for place, parts in enumerate(found["parts"]):
        assert parts[0]["from"] == 0
        assert all(one["to"] == two["from"] for one, two in itertools.pairwise(parts))
        end = columns["ended_ms"][place] - rows["created_ms"]
        assert parts[-1]["to"] == pytest.approx(end, abs=1)
        assert found["end_ms"][place] == end
        lengths = {part["kind"]: part["to"] - part["from"] for part in parts}
        assert lengths["model"] == pytest.approx(columns["llm_ms"][place], abs=2)
        assert lengths["tools"] == pytest.approx(columns["tools_ms"][place], abs=2)
        assert (
            found["longest"][place]
            == max(
                {"queued": found["start_ms"][place], "model": columns["llm_ms"][place]}.items(),
                key=lambda item: item[1],
            )[0]
        )


def test_the_workers_time_is_split_where_a_row_knows_it(browser: Browser) -> None:
    rows = table(4)
    columns = rows["columns"]
    columns["claimed_ms"], columns["ended_ms"] = [rows["created_ms"]] * 4, [rows["created_ms"] + 1000] * 4
    columns["tokenizer_ms"], columns["llm_ms"], columns["tools_ms"] = [0.0] * 4, [100.0] * 4, [0.0] * 4
    # The third is an older result; the waits of the last one are more than its time, because turns were at once.
    columns["loop_ms"], columns["redis_ms"] = [800, 0, None, 900], [60, 0, None, 900]
    found = lanes(browser, rows)
    lengths = [{part["kind"]: part["to"] - part["from"] for part in parts} for parts in found["parts"]]
    assert lengths == [
        {"model": 100, "own": 40, "loop": 800, "redis": 60},
        {"model": 100, "own": 900},
        {"model": 100, "other": 900},
        {"model": 100, "loop": 450, "redis": 450},
    ]
    assert found["other_ms"] == [900] * 4
    assert found["longest"] == ["loop", "own", "other", "loop"]


def test_lanes_of_what_has_not_ended_and_of_clocks_that_disagree(browser: Browser) -> None:
    rows = table(4)
    columns = rows["columns"]
    columns["status"] = ["queued", "running", "cancelled", "completed"]
    columns["ended_ms"] = [None, None, rows["created_ms"] + 500, rows["created_ms"] + 1000]
    columns["claimed_ms"] = [None, rows["created_ms"] + 250, None, rows["created_ms"] + 100]
    columns["total_ms"] = [None, None, None, 900.0]
    # More than there is time between claim and end.
    columns["llm_ms"] = [None, None, None, 1500.0]
    columns["tools_ms"] = [None, None, None, 300.0]
    columns["tokenizer_ms"] = [None, None, None, None]
    found = lanes(browser, rows)["parts"]
    assert found[0] == [{"kind": "queued", "from": 0, "to": 100_000}]
    assert found[1] == [{"kind": "queued", "from": 0, "to": 250}, {"kind": "running", "from": 250, "to": 100_000}]
    assert found[2] == [{"kind": "queued", "from": 0, "to": 500}]
    assert found[3] == [
        {"kind": "queued", "from": 0, "to": 100},
        {"kind": "model", "from": 100, "to": 850},
        {"kind": "tools", "from": 850, "to": 1000},
    ]


def test_who_held_the_batch_is_said_and_is_on_top(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = answers(64)
        page = pool.open(f"#/lanes/{BATCH}")
        page.locator("#row-0").wait_for()
        # The batch's state comes in an answer of its own, and moves the lanes down.
        page.locator(".chip").first.wait_for()
        ends = sorted(end - 1_000_000 for end in pool.answers[f"/v1/batches/{BATCH}/rollouts"]["columns"]["ended_ms"])
        said = page.locator(".alert").inner_text()
        assert "The last 3 rollouts of 64 ran alone" in said
        assert f"{(ends[-1] - ends[-4]) / 1000:.1f} s" in said
        assert page.locator("#row-0 .cell").first.inner_text() == "63"
        assert "late" in page.locator("#row-0").inner_text()
        assert "late" not in page.locator("#row-3").inner_text()
        lane = page.locator("#row-0 .lane")
        box = lane.bounding_box()
        assert box is not None
        row = page.locator("#row-0").bounding_box()
        assert row is not None
        assert row["y"] <= box["y"] <= row["y"] + 27
        parts = [part.bounding_box() for part in lane.locator("i").all()]
        widths = [part["width"] for part in parts if part is not None]
        assert sum(widths) == pytest.approx(box["width"], abs=6)
        label = lane.get_attribute("aria-label")
        assert label is not None
        assert label.startswith("queued ")
        # Without colour: each kind has a pattern of its own.
        looks = page.locator(".swatch .lane i").evaluate_all(
            "list => list.map(i => { const s = getComputedStyle(i); return s.backgroundImage + s.borderTopStyle"
            " + s.borderBottomWidth })"
        )
        assert len(set(looks)) == 8
        said = page.locator(".legend").inner_text()
        assert all(name in said for name in ("worker's own work", "waited for the worker", "waited for Redis"))
        assert "its own work and its waits" not in said
        pool.look("lanes")


def test_a_batch_that_ends_together_has_no_stragglers(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = answers(64, ended_ms=[1_000_000 + 5000 + i for i in range(64)])
        page = pool.open(f"#/lanes/{BATCH}")
        page.locator("#row-0").wait_for()
        assert page.locator(".alert").count() == 0
        assert "late" not in page.locator("main").inner_text()
