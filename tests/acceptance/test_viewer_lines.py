"""The lines of talk of a program that led a rollout, in a real browser. Needs Chromium, as test_viewer.py."""

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.support.browsers import needs_browser
from tests.support.finished_rollouts import rollout, sample, turn, two_lines
from tests.support.viewed_batches import BATCH, EVIL, rollout_answers
from tests.support.viewed_pool import ViewedPool, viewed

from rolloutpool_common.capabilities.harness.wire import AskedWay, HarnessReport, LineKind, LineReport
from rolloutpool_common.protocol.result import RolloutResult

pytestmark = needs_browser

UID = f"{BATCH}-0"
LINES = [
    LineReport(
        line=1,
        kind=LineKind.MAIN,
        why="it leads to the session's last call with tools",
        turns=12,
        tokens=1820,
        trained_tokens=1820,
        samples=[0],
    ),
    LineReport(
        line=2,
        kind=LineKind.CHILD,
        why="it runs beside line 1 from the same beginning, and nothing follows its last reply",
        parent=1,
        turns=2,
        tokens=312,
        trained_tokens=201,
        samples=[1],
        left_out={"unfollowed": 96, "agent_restarted": 15},
    ),
    LineReport(
        line=3,
        kind=LineKind.CONTINUATION,
        why="it begins after the last call of line 1, with its tools and system text",
        parent=1,
        turns=3,
        tokens=540,
        trained_tokens=540,
        samples=[2],
    ),
]


def led(*lines: LineReport, **changes: Any) -> RolloutResult:
    """A rollout that a program has led."""
    told = [sample(f"<user>ask {one.line}", ("sampled", f"said in line {one.line}</s>", 1)) for one in lines]
    report = HarnessReport(calls=sum(one.turns for one in lines), lines=list(lines), **changes)
    return rollout(*told, turns=[turn(n) for n in (1, 2, 3)], alignment="exact", harness=report)


def opened(pool: ViewedPool, result: RolloutResult) -> Page:
    pool.answers = rollout_answers(result)
    page = pool.open(f"#/rollout/{UID}")
    page.locator(".block").first.wait_for(state="attached")
    return page


@pytest.mark.parametrize("width", [1280, 390])
def test_each_line_says_what_it_is_and_what_is_trained_of_it(browser: Browser, width: int) -> None:
    with viewed(browser) as pool:
        pool.page.set_viewport_size({"width": width, "height": 800})
        page = opened(pool, led(*LINES, places=2))
        pool.look(f"rollout-lines-{width}")
        summary = "3 lines of talk, 17 calls, its program was started 2 times"
        expect(page.locator("summary", has_text="lines of talk")).to_have_text(summary)
        rows = page.get_by_role("region", name="lines of talk").locator("tbody tr")
        cells = [[cell.strip() for cell in row.locator("td").all_inner_texts()] for row in rows.all()]
        assert cells == [
            ["1", "main", "12", "1,820", "1,820", "", "1", LINES[0].why],
            ["└ 2", "child", "2", "312", "201", "unfollowed 96, agent_restarted 15", "2", LINES[1].why],
            ["└ 3", "continuation", "3", "540", "540", "", "3", LINES[2].why],
        ]
        # On a phone the table scrolls inside the page, and no word is cut to make it fit.
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        kinds = [row.locator("td").nth(1).bounding_box() for row in rows.all()]
        assert all(box is not None and box["height"] < 120 for box in kinds)


def test_a_line_leads_to_its_sample(browser: Browser) -> None:
    result = led(*LINES)
    with viewed(browser) as pool:
        page = opened(pool, result)
        page.get_by_role("region", name="lines of talk").get_by_role("link", name="2", exact=True).click()
        expect(page.locator(".inspector")).to_contain_text("sample 2", use_inner_text=True)
        expect(page.locator(".inspector")).to_contain_text(
            f"id {result.samples[1].response_ids[0]}", use_inner_text=True
        )


def test_a_long_chain_stays_on_the_page_and_its_words_are_no_markup(browser: Browser) -> None:
    chain = [LINES[2].model_copy(update={"line": n, "parent": n - 1 or None, "samples": []}) for n in range(1, 31)]
    chain[-1] = chain[-1].model_copy(update={"why": EVIL, "left_out": {EVIL: 3}})
    with viewed(browser) as pool:
        page = opened(pool, led(*chain))
        page.locator("summary", has_text="30 lines of talk").click()
        last = page.get_by_role("region", name="lines of talk").locator("tbody tr").last
        expect(last).to_contain_text("└ 30")
        assert last.locator("script, img").count() == 0
        box = last.locator("td").first.bounding_box()
        assert box is not None
        assert box["width"] < 200


def test_what_the_program_sent_beside_its_prompt_is_shown_as_text(browser: Browser) -> None:
    asked = [
        AskedWay(dialect="Messages", fields={"model": EVIL, "thinking": {"type": "adaptive"}}, calls=[1, 2, 3, 7]),
        AskedWay(dialect="Messages", fields={"model": "small"}, calls=[4]),
    ]
    with viewed(browser) as pool:
        page = opened(pool, led(*LINES, asked=asked))
        page.locator("summary", has_text="how it asked: 2 ways").click()
        pool.look("rollout-asked")
        ways = [page.get_by_role("region", name=f"way {n}").inner_text() for n in (1, 2)]
    assert ways[0].startswith("Messages, calls 1\N{EN DASH}3, 7")
    # Also what would turn the line around is shown, and not obeyed.
    assert EVIL.replace("\u202e", "⟨U+202E⟩") in ways[0]
    assert '"type": "adaptive"' in ways[0]
    assert ways[1].startswith("Messages, call 4")


def test_another_line_is_no_fork_and_its_turns_are_its_own(browser: Browser) -> None:
    lines = [LINES[0].model_copy(update={"samples": [0, 1]}), LINES[1].model_copy(update={"samples": [2]})]
    with viewed(browser) as pool:
        page = opened(pool, two_lines(harness=HarnessReport(calls=4, lines=lines)))
        assert page.locator(".sample h3").all_inner_texts() == [
            "Sample 1 9 + 24 tokens of line 1 (main)",
            "Sample 2 16 + 11 tokens of line 1 (main)",
            "Sample 3 10 + 16 tokens of line 2 (child)",
        ]
        places = [sample.locator(".where").all_inner_texts() for sample in page.locator(".sample").all()]
        assert places == [
            ["prompt", "turn 1"],
            ["prompt\nas sample 1", "prompt\n↳ fork of 1", "turn 2"],
            ["prompt\nas sample 2", "prompt", "turn 1", "turn 2"],
        ]
        page.get_by_role("link", name="proof", exact=True).click()
        page.locator(".verdict").wait_for()
        assert "✓ each sampled turn is in one sample: 4 of 4" in page.locator(".checks").inner_text()
        said = [section.inner_text() for section in page.locator(".turn").all()]
        assert [text.splitlines()[0] for text in said] == [
            "Turn 1 ✓ the echo is the ledger",
            "Turn 1 ✓ the echo is the ledger",
            "Turn 2 ≠ thinking_stripped",
            "Turn 2 ✓ the echo is the ledger",
        ]
        assert ["They part" in text for text in said] == [False, False, True, False]
        assert "Sample 2 begins with the echo" in said[2]
