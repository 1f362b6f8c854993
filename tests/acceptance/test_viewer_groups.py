"""The viewer's groups in a real browser: which of them teach something, and their rollouts side by side."""

import random
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from tests.support.browsers import needs_browser, wait_until
from tests.support.viewed_batches import BATCH, EVIL, answers, table
from tests.support.viewed_pool import viewed

from rolloutpool_api.capabilities.grading.annotations import group_statistics, scores
from rolloutpool_common.capabilities.grading.annotating import GroupStatistics
from rolloutpool_common.protocol.rows import ENDED_FIELDS
from rolloutpool_common.store.rows import StoredTable

pytestmark = needs_browser

APPROXIMATE = {"mean", "deviation", "min", "max", "sampled_tokens"}
"""Figures that may differ in their last digits."""


def random_columns(seed: int) -> dict[str, list[Any]]:
    """Columns in which groups have any size, rewards are often equal, and some rollouts have not ended."""
    chance = random.Random(seed)
    count = chance.randrange(1, 60)
    return {
        "index": list(range(count)),
        "uid": [f"{BATCH}-{i}" for i in range(count)],
        "group": [chance.choice([None, "a", "b", "c", "10", "9"]) for _ in range(count)],
        "status": [chance.choice(["completed", "failed", "running", "queued", "expired"]) for _ in range(count)],
        "sampled_tokens": [chance.choice([None, 0, 7, 1234]) for _ in range(count)],
        **{
            name: [chance.choice([None, 0.1, 0.1, 0.1, 1e30, -3]) for _ in range(count)]
            for name in chance.choice([("annotations.reward",), ("reward",), ("annotations.reward", "reward")])
        },
    }


def expected_groups(columns: dict[str, list[Any]]) -> dict[str, GroupStatistics]:
    """What the API computes of the same rollouts."""
    own = columns.get("reward", [None] * len(columns["index"]))
    known = [
        {"status": status, "sampled_tokens": tokens, "reward": reward}
        for status, tokens, reward in zip(columns["status"], columns["sampled_tokens"], own, strict=True)
    ]
    rows = [[values.get(name) for name in ENDED_FIELDS] for values in known]
    stored = StoredTable(
        total=len(rows), indexes=columns["index"], rows=rows, groups=columns["group"], created_ms=0, now_ms=0
    )
    said = {i: value for i, value in enumerate(columns.get("annotations.reward", ())) if value is not None}
    return {group.group: group for group in group_statistics(stored, scores(stored, {"reward": said}, "reward"))}


def test_figures_are_those_that_the_api_computes(browser: Browser) -> None:
    tables = [random_columns(seed) for seed in range(100)]
    with viewed(browser) as pool:
        pool.answers["/v1/batches"] = {"batches": [], "next_cursor": None}
        pool.open()
        found = pool.module("group_figures.js", "v.map(columns => m.groupFigures(columns, 'reward'))", tables)
    for columns, ours in zip(tables, found, strict=True):
        expected = expected_groups(columns)
        assert set(ours["group"]) == set(expected)
        for place, name in enumerate(ours["group"]):
            theirs = expected[name].model_dump(include={"size", "ended", "annotated", *APPROXIMATE})
            theirs["not_completed"] = expected[name].ended - expected[name].completed
            theirs["zero_spread"] = "yes" if expected[name].zero_spread else "no"
            for field, value in theirs.items():
                close = pytest.approx(value, rel=1e-9) if field in APPROXIMATE and value is not None else value
                assert ours[field][place] == close, (field, columns)


def test_rewards_of_a_grader_are_shown_as_annotated_ones_are(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = answers(16, reward=[float(i < 8) for i in range(16)])
        columns = pool.answers[f"/v1/batches/{BATCH}/rollouts"]["columns"]
        columns["annotations.reward"] = [None] * 15 + [0.5]
        page = pool.open(f"#/batch/{BATCH}?sort=reward&where=reward>0")
        page.locator("#row-8").wait_for()
        assert page.locator("#row-9").count() == 0
        assert [page.locator(f"#row-{at} .cell").last.inner_text() for at in (0, 1)] == ["0.5", "1"]
        assert page.locator(".head button", has_text="reward").count() == 1
        page.get_by_role("link", name="groups").click()
        # The first group's are all 1; of the second one, 0.5 was annotated later.
        expect(page.locator(".alert")).to_contain_text("1 group of 2 has no spread of reward")
        page.locator("#row-1").click()
        page.locator(".siblings thead a").first.wait_for()
        assert page.locator(".siblings tbody tr").first.locator("td").all_inner_texts() == ["0"] * 7 + ["0.5"]


def test_groups_without_spread_are_marked_and_found(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = answers(128)
        page = pool.open(f"#/groups/{BATCH}")
        page.locator("#row-0").wait_for()
        assert "4 groups of 16 have no spread of reward" in page.locator(".alert").inner_text()
        assert page.locator(".row.marked").count() == 4
        assert page.locator("#row-1 .bad").inner_text() == "= no spread"
        # Sorted as people count: g2 before g10.
        assert [page.locator(f"#row-{at} .cell").first.inner_text() for at in (1, 2, 10)] == ["g1", "g2", "g10"]
        pool.look("groups")
        page.get_by_role("link", name="Show only those").click()
        expect(page.locator(".all .row")).to_have_count(4)
        assert [page.locator(f"#row-{at} .cell").first.inner_text() for at in range(4)] == ["g1", "g5", "g9", "g13"]
        box = page.locator("#row-3").bounding_box()
        assert box is not None
        assert 0 <= box["y"] <= 790


def test_from_a_group_to_its_rollouts_and_up_again(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = answers(32)
        page = pool.open(f"#/batch/{BATCH}")
        page.get_by_role("link", name="groups").click()
        page.get_by_role("grid", name="groups:").locator("#row-0").click()
        page.get_by_role("heading", name="Group g0").wait_for()
        wait_until(page, f"location.hash === '#/group/{BATCH}/g0'")
        expect(page.locator(".siblings thead a")).to_have_text([f"#{i}" for i in range(8)])
        rewards = pool.answers[f"/v1/batches/{BATCH}/rollouts"]["columns"]["annotations.reward"][:8]
        cells = page.locator(".siblings tbody tr").first.locator("td").all_inner_texts()
        assert [float(text) if text else None for text in cells] == rewards
        page.keyboard.press("n")
        page.get_by_role("heading", name="Group g1").wait_for()
        expect(page.locator(".alert")).to_contain_text("= no spread")
        pool.look("group")
        page.keyboard.press("l")
        page.keyboard.press("Enter")
        wait_until(page, f"location.hash === '#/rollout/{BATCH}-9?group=g1'")
        way = page.locator("nav[aria-label='where you are'] a")
        expect(way).to_have_text(["batches", BATCH[:8], "group g1", "#9"])
        page.keyboard.press("u")
        page.get_by_role("heading", name="Group g1").wait_for()
        page.keyboard.press("u")
        page.get_by_role("heading", name="Batch").wait_for()
        wait_until(page, f"location.hash === '#/groups/{BATCH}'")


def test_others_are_compared_with_the_one_that_is_chosen(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = answers(8)
        page = pool.open(f"#/group/{BATCH}/g0")
        page.get_by_role("button", name="compare the others with #2").click()
        wait_until(page, "location.hash.includes('base=')")
        links = page.get_by_role("link", name="compare", exact=True)
        expect(links).to_have_count(7)
        expect(links.first).to_have_attribute("href", f"#/compare/{BATCH}-2/{BATCH}-0")


def test_names_of_groups_are_text_and_a_group_may_have_any(browser: Browser) -> None:
    name = f"{EVIL}/?#%2F&="
    with viewed(browser) as pool:
        pool.answers = answers(8, group=[name] * 8)
        page = pool.open(f"#/groups/{BATCH}")
        page.locator("#row-0").click()
        page.locator(".siblings").wait_for()
        assert page.locator("h1").inner_text().startswith("Group <script>")
        assert page.locator("main script, main img").count() == 0
        assert page.locator(".siblings thead a").count() == 8


def test_a_batch_without_groups_or_rewards_says_so(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = answers(8, group=[None] * 8)
        page = pool.open(f"#/groups/{BATCH}")
        page.get_by_text("No rollout of this batch has a group.").wait_for()
        rows = table(8)
        del rows["columns"]["annotations.reward"]
        pool.answers[f"/v1/batches/{BATCH}/rollouts"] = rows
        page = pool.open(f"?again#/groups/{BATCH}")
        page.get_by_text("Nothing was said of these rollouts yet").wait_for()
        expect(page.locator("#row-0")).to_be_visible()
        pool.open(f"?more#/group/{BATCH}/other")
        page.get_by_text("This batch has no such group.").wait_for()


def test_a_table_is_saved_as_it_is_shown(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = answers(8, rollout_id=["=1+1", '"x",y', "-3", *["plain"] * 5])
        page = pool.open(f"#/batch/{BATCH}?where=turns%3C99&sort=-index")
        page.locator("#row-0").wait_for()
        with page.expect_download() as saved:
            page.get_by_role("button", name="save as CSV").click()
        assert saved.value.suggested_filename == f"{BATCH}.csv"
        text = saved.value.path().read_bytes().decode()
        lines = text.split("\r\n")
        head = lines[0].split(",")
        assert head[:4] == ["index", "uid", "group", "rollout_id"]
        assert lines[1].startswith(f"7,{BATCH}-7,g0,plain,")
        # A spreadsheet would run a text that begins with `=`.
        assert lines[8].startswith(f"0,{BATCH}-0,g0,'=1+1,")
        assert f'1,{BATCH}-1,g0,"""x"",y",' in lines[7]
        assert lines[6].startswith(f"2,{BATCH}-2,g0,'-3,")
