"""What the viewer says of a result's proof, and of two rollouts that part, in a real browser."""

from typing import Any

from playwright.sync_api import Browser, expect
from tests.support.browsers import needs_browser, wait_until
from tests.support.finished_rollouts import forked, rollout, sample, turn
from tests.support.viewed_batches import BATCH, rollout_answers
from tests.support.viewed_pool import viewed

pytestmark = needs_browser

UID = f"{BATCH}-0"


def test_a_fork_shows_where_the_echo_parts_from_the_ledger(browser: Browser) -> None:
    result = forked()
    first, second = result.samples
    ledger = [*first.prompt_ids, *first.response_ids]
    position = next(
        at for at, (ours, theirs) in enumerate(zip(ledger, second.prompt_ids, strict=False)) if ours != theirs
    )
    with viewed(browser) as pool:
        pool.answers = rollout_answers(result)
        page = pool.open(f"#/rollout/{UID}")
        page.get_by_role("link", name="proof").click()
        page.locator(".verdict").wait_for()
        assert page.locator(".verdict").inner_text().startswith("↳ forked")
        drifted = page.locator(".turn.drifted")
        assert drifted.count() == 1
        assert "Turn 2 ≠ thinking_stripped" in drifted.inner_text()
        assert f"They part at position {position}." in drifted.inner_text()
        rows = drifted.locator("tr")
        ids = [[int(text) for text in rows.nth(at).locator("td").all_inner_texts()] for at in (1, 3)]
        assert ids == [
            [*ledger[position - 8 : position], *ledger[position : position + 24]],
            [*ledger[position - 8 : position], *second.prompt_ids[position : position + 24]],
        ]
        assert rows.nth(0).locator("td.parts").inner_text() == chr(ledger[position])
        assert rows.nth(2).locator("td.parts").inner_text() == chr(second.prompt_ids[position])
        trained = sum(sum(one.response_mask) for one in result.samples)
        assert page.locator(".checks li").all_inner_texts() == [
            f"✓ mask 1 lies on sampled tokens only: {trained} of {trained}",
            "✓ each sampled turn is in one sample: 3 of 3",
            "✓ every token of the responses has an origin: 0 have none",
            f"· the turns report 24 sampled tokens, the samples hold {trained}, and {trained} are trained",
        ]
        pool.look("proof")
        page.get_by_role("link", name="see it", exact=True).click()
        page.locator("i.here").wait_for()
        expect(page.locator(".inspector")).to_contain_text(f"id {second.prompt_ids[position]}", use_inner_text=True)


def test_what_a_turn_recorded_goes_before_what_a_fork_shows(browser: Browser) -> None:
    difference = {"position": 7, "before": [97], "expected": [98, 99], "echoed": [98, 99, 100]}
    with viewed(browser) as pool:
        pool.answers = rollout_answers(forked())
        result = pool.answers[f"/v1/rollouts/{UID}"]["result"]
        result["turns"][1]["difference"] = difference
        result["failure"] = {
            "kind": "infra",
            "boundary": "trainer",
            "category": "mask_disproved",
            "message": "m",
            "retryable": False,
            "turn": 9,
            "difference": {**difference, "position": 1234, "expected": []},
        }
        page = pool.open(f"#/proof/{UID}")
        page.locator(".turn.drifted").first.wait_for()
        first, last = page.locator(".turn.drifted").all_inner_texts()
        assert "They part at position 7. The text is the same and it is split into other ids" in first
        assert "Sample 2 begins with the echo" in first
        assert "Turn 9 ≠ its prompt ended the rollout" in last
        assert "position 1,234" in last
        assert "ends here" in last


def test_what_the_result_disproves_is_said(browser: Browser) -> None:
    wrong = sample("ask", ("glue", "a", 1), ("sampled", "b", 1)).model_copy(update={"response_mask": [1, 1]})
    again = sample("other", ("sampled", "b", 1))
    result = rollout(wrong, again, turns=[turn(1, "unverified", sampled_tokens=2), turn(2, "glue_rewritten")])
    with viewed(browser) as pool:
        pool.answers = rollout_answers(result)
        page = pool.open(f"#/proof/{UID}")
        page.locator(".checks").wait_for()
        assert page.locator(".checks .bad").all_inner_texts() == [
            "✕ mask 1 lies on sampled tokens only: 2 of 3",
            "✕ each sampled turn is in one sample: 0 of 1",
        ]
        assert "✓ the turns report 10 sampled tokens" not in page.locator(".checks").inner_text()
        assert "there was nothing to compare" in page.locator("main").inner_text()
        assert "The result does not hold where they part." in page.locator(".turn.drifted").inner_text()


PARTINGS: list[tuple[tuple[str, str], tuple[str, str], Any]] = [
    (("ask", "yes"), ("ask", "yes"), None),
    (("ask", "yes"), ("ask", "yeah"), {"at": 5, "ends": [False, False]}),
    (("ask", "ye"), ("ask", "yes"), {"at": 5, "ends": [True, False]}),
    (("ask", "yes"), ("", ""), {"at": 0, "ends": [False, True]}),
    # What is prompt in one may be response in the other: tokens are compared as they were read.
    (("askyes", ""), ("ask", "yes"), None),
]


def test_the_first_token_where_two_part(browser: Browser) -> None:
    pairs = [
        [sample(prompt, ("sampled", text, 1)).model_dump() for prompt, text in (one, other)]
        for one, other, _ in PARTINGS
    ]
    with viewed(browser) as pool:
        pool.answers["/v1/batches"] = {"batches": [], "next_cursor": None}
        pool.open()
        found = pool.module("compare.js", "v.map(pair => m.parting(...pair))", pairs)
    assert found == [expected for _, _, expected in PARTINGS]


def test_two_rollouts_are_shown_from_where_they_part(browser: Browser) -> None:
    one = rollout(sample("ask " * 40, ("sampled", "so it is 42", 1), policy="step-7"), rollout_id="one")
    other = rollout(sample("ask " * 40, ("sampled", "so it was", 1), policy="step-8"), rollout_id="other")
    with viewed(browser) as pool:
        pool.answers = rollout_answers(one, other)
        page = pool.open(f"#/compare/{BATCH}-0/{BATCH}-1")
        page.locator("i.parts").last.wait_for()
        assert (
            page.locator(".alert").inner_text()
            == "The first 166 tokens are the same. The policy sampled another token."
        )
        assert page.locator(".sides i.parts").all_inner_texts() == ["i", "w"]
        texts = page.locator(".sides .tokens").evaluate_all("list => list.map(box => box.textContent)")
        assert [text[-11:] for text in texts] == ["so it is 42", "k so it was"]
        # 60 tokens in common are enough to know where one is.
        assert len(texts[0]) == 60 + 5
        facts = page.locator(".sides dl").all_inner_texts()
        assert "step-7" in facts[0]
        assert "step-8" in facts[1]
        pool.look("compare")
        page.keyboard.press("2")
        page.locator("i.here").wait_for()
        wait_until(page, f"location.hash === '#/rollout/{BATCH}-1?at=0.166'")


def test_a_comparison_with_what_is_not_there_says_so(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = rollout_answers(rollout(sample("a", ("sampled", "b", 1))), rollout())
        page = pool.open(f"#/compare/{BATCH}-0/{BATCH}-1")
        page.get_by_text("One of them has no samples").wait_for()
        page = pool.open(f"#/compare/{BATCH}-0/{BATCH}-9")
        expect(page.get_by_role("alert")).to_contain_text("there is nothing")
        page = pool.open(f"#/compare/{BATCH}-0")
        page.get_by_text("There is no second rollout").wait_for()
        page = pool.open(f"#/compare/{BATCH}-0/{BATCH}-0?a=7&b=-3")
        page.get_by_text("All 2 tokens are the same.").wait_for()
