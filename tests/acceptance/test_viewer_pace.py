"""However slow machine and network are, every key of a person counts, and no late answer misleads."""

from playwright.sync_api import Browser, expect
from tests.support.browsers import needs_browser, wait_until
from tests.support.finished_rollouts import forked
from tests.support.viewed_batches import BATCH, answers, batch_line, rollout_answers
from tests.support.viewed_pool import ViewedPool, viewed

pytestmark = needs_browser

UID = f"{BATCH}-0"
ROWS = f"/v1/batches/{BATCH}/rollouts"
PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
PRESS = "(key) => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}))"


def as_soon_as(pool: ViewedPool, selector: str, action: str) -> None:
    """Has the page act before its next frame, when it has drawn such an element for the first time."""
    pool.page.add_init_script(f"""new MutationObserver((_, watch) => {{
        if (!document.querySelector('{selector}')) return;
        watch.disconnect();
        {action};
    }}).observe(document, {{childList: true, subtree: true}})""")


def test_the_address_counts_as_soon_as_the_page_is_there(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers["/v1/batches"] = {"batches": [], "next_cursor": None}
        as_soon_as(pool, "main h1", "location.hash = '#/search'")
        page = pool.open()
        expect(page.locator("h1")).to_have_text("Search in texts")


def test_a_key_acts_on_the_view_that_the_key_before_it_opened(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = answers(3)
        page = pool.open(f"#/batch/{BATCH}")
        # Between two keys the browser does no more than this where both are there already.
        focused = page.evaluate(
            f"async () => {{ ({PRESS})('f'); await null; return document.activeElement.ariaLabel; }}"
        )
        assert focused == "text to find"
        page.go_back()
        page.get_by_role("grid", name="rollouts:").wait_for()


def test_a_key_goes_on_from_the_token_of_the_address(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = rollout_answers(forked())
        as_soon_as(pool, ".block", f"({PRESS})('l')")
        page = pool.open(f"#/rollout/{UID}?at=1.12")
        expect(page.locator(".inspector")).to_contain_text("position 13 in sample 2", use_inner_text=True)


def test_no_other_rollout_is_offered_before_the_group_is_known(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = rollout_answers(forked(group="g"), forked(group="other"), forked(group="g"))
        pool.answers[ROWS]["columns"] = {"uid": [UID, f"{BATCH}-2"]}
        group = pool.hold(ROWS)
        page = pool.open(f"#/rollout/{UID}")
        page.locator(".block").first.wait_for(state="attached")
        page.keyboard.press("n")
        page.keyboard.press("c")
        assert page.evaluate("location.hash") == f"#/rollout/{UID}"
        assert page.get_by_text("compare with").count() == 0
        group.set()
        page.get_by_text("compare with the next").wait_for()
        page.keyboard.press("n")
        wait_until(page, f"location.hash === '#/rollout/{BATCH}-2'")


def test_keys_choose_in_a_group_whose_rollouts_are_not_there_yet(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = answers(8)
        rows = pool.hold(ROWS)
        page = pool.open(f"#/group/{BATCH}/g0")
        page.keyboard.press("Enter")
        page.keyboard.press("l")
        rows.set()
        expect(page.locator(".siblings th[aria-current]")).to_have_text("#1")
        page.keyboard.press("Enter")
        wait_until(page, f"location.hash === '#/rollout/{BATCH}-1?group=g0'")


def test_what_is_typed_stays_when_the_list_is_drawn_anew(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers["/v1/batches"] = {"batches": [batch_line(1)], "next_cursor": None}
        pool.page.clock.install()
        page = pool.open()
        expect(page.locator("tbody tr")).to_have_count(1)
        run = page.get_by_label("run", exact=True)
        run.press_sequentially("ppo")
        pool.answers["/v1/batches"] = {"batches": [batch_line(2), batch_line(1)], "next_cursor": None}
        page.clock.run_for(6_000)
        expect(page.locator("tbody tr")).to_have_count(2)
        assert run.input_value() == "ppo"
        page.keyboard.type("-7")
        page.keyboard.press("Enter")
        wait_until(page, "location.hash === '#/?run=ppo-7'")
        page.evaluate("location.hash = '#/?run=other'")
        expect(run).to_have_value("other")


def test_older_batches_that_come_late_take_the_place_of_no_others(browser: Browser) -> None:
    with viewed(browser) as pool:
        for number, asked in enumerate(("limit=200", "limit=200&state=running")):
            lines = [batch_line(number), batch_line(number + 2)]
            pool.answers[f"/v1/batches?{asked}"] = {"batches": lines[:1], "next_cursor": "older"}
            pool.answers[f"/v1/batches?{asked}&cursor=older"] = {"batches": lines[1:], "next_cursor": None}
        late = pool.hold("/v1/batches?limit=200&cursor=older")
        page = pool.open()
        page.get_by_role("button", name="older ones").click()
        pool.until_asked("/v1/batches", {"limit": "200", "cursor": "older"})
        page.get_by_label("state").select_option("running")
        wait_until(page, "location.hash.includes('state=running')")
        page.get_by_role("button", name="older ones").click()
        shown = page.locator("tbody td:first-child .id")
        expect(shown).to_have_count(2)
        for place, number in enumerate((1, 3)):
            expect(shown.nth(place)).to_have_attribute("title", batch_line(number)["batch_id"])
        late.set()
        pool.until_answered()
        page.evaluate(PAINTED)
        assert shown.count() == 2
