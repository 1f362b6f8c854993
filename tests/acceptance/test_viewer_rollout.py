"""A rollout in the viewer, in a real browser: every token with its origin. Needs Chromium, as test_viewer.py."""

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, CDPSession, Page, expect
from tests.support.browsers import needs_browser, wait_until
from tests.support.finished_rollouts import forked, rollout, sample, turn
from tests.support.viewed_batches import BATCH, EVIL, answers, rollout_answers
from tests.support.viewed_pool import ViewedPool, viewed

from rolloutpool_common.outcomes import Boundary, Category, Failure, FailureKind, RolloutStatus
from rolloutpool_common.protocol.messages import FunctionCall, Message, ToolCall
from rolloutpool_common.protocol.result import Sample, SampleSegment, ToolTime

pytestmark = needs_browser

UID = f"{BATCH}-0"
TEXT = "über 日本 🙂!\nsecond line"


def opened(pool: ViewedPool, address: str = "") -> Page:
    page = pool.open(f"#/rollout/{UID}{address}")
    page.locator(".block").first.wait_for(state="attached")
    return page


def inspected(page: Page, text: str) -> None:
    """Waits until the inspector says so of the token that was gone to."""
    expect(page.locator(".inspector")).to_contain_text(text, use_inner_text=True)


def drawn(page: Page) -> int:
    """How many tokens there are, each with an element of its own."""
    # Pointing at a block does the same.
    page.keyboard.press("b")
    wait_until(page, "!document.querySelector('.sample .block:not(:has(> i))')")
    return page.locator(".sample i").count()


def test_the_mask_is_the_results_own_and_t_leads_to_the_first_trained_token(browser: Browser) -> None:
    result = forked()
    with viewed(browser) as pool:
        pool.answers = rollout_answers(result)
        page = opened(pool)
        assert page.locator(".sample .run.m i").count() == sum(sum(one.response_mask) for one in result.samples)
        assert drawn(page) == sum(len(s.prompt_ids) + len(s.response_ids) for s in result.samples)
        page.keyboard.press("t")
        first = result.samples[0]
        place = first.response_mask.index(1)
        inspected(page, f"id {first.response_ids[place]}")
        box = page.locator("i.here").bounding_box()
        assert box is not None
        assert 0 <= box["y"] <= 760
        pool.look("rollout-mask")


def test_tokens_read_as_text_and_a_character_of_several_tokens_is_whole(browser: Browser) -> None:
    broken = sample("ask", ("sampled", TEXT, 1))
    broken = broken.model_copy(
        update={
            # A character that is cut, in the middle and at the end.
            "response_ids": [*broken.response_ids[:-2], 0xE6, 0x97, 0x41, 0xF0],
            "response_mask": [1] * (len(TEXT.encode()) + 2),
            "response_logprobs": [-0.5] * (len(TEXT.encode()) + 2),
            "segments": [SampleSegment(kind="sampled", start=0, n=len(TEXT.encode()) + 2, turn=1)],
        }
    )
    with viewed(browser) as pool:
        pool.answers = rollout_answers(rollout(broken))
        page = opened(pool)
        shown = page.locator(".sample .run.m").evaluate("run => run.textContent")
        assert shown == TEXT[:-2].replace("\n", "↵\n") + "⟨E6⟩⟨97⟩A⟨F0⟩"
        # What continues a character reads nothing, can be pointed at, and does not come between letters.
        more = page.locator(".sample .run.m i.more")
        assert more.count() == len(TEXT.encode()) - len(TEXT)
        more.first.hover()
        inspected(page, "id 188 reads continues the character before it")


def test_without_a_vocabulary_tokens_are_ids_and_the_page_says_why(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = rollout_answers(forked(), pieces=False)
        page = opened(pool)
        page.get_by_text("the result does not name its tokenizer").wait_for()
        assert page.locator(".sample .run.m").first.evaluate("run => run.textContent").startswith("60 116 104 ")
        pool.answers = rollout_answers(forked())
        del pool.answers["/v1/tokenizers/bytes/pieces"]
        page = pool.open(f"?again#/rollout/{UID}")
        page.get_by_text("their texts are not known here: there is nothing").wait_for()


def test_layers_are_chosen_by_keys_kept_in_the_address_and_seen_without_colour(browser: Browser) -> None:
    result = forked()
    advantages = [[-2.0 + 0.1 * at for at in range(len(one.response_ids))] for one in result.samples]
    advantages[0][3] = 4.0
    sparse: list[list[float | None]] = [[None] * len(one.response_ids) for one in result.samples]
    sparse[0][0] = 0.25
    with viewed(browser) as pool:
        pool.answers = rollout_answers(result)
        streams = {"advantage": advantages, "entropy": sparse}
        pool.answers[f"/v1/rollouts/{UID}/annotations"] = {"uid": UID, "scalars": {"reward": 0.5}, "streams": streams}
        page = opened(pool)
        assert "reward 0.5" in page.locator(".chips").inner_text()
        line = "e => getComputedStyle(e).textDecorationLine + getComputedStyle(e).textDecorationStyle"
        assert page.locator(".sample .run.m").first.evaluate(line) == "underlinesolid"
        assert page.locator(".sample .run.g").first.evaluate(line) == "nonesolid"
        page.keyboard.press("2")
        wait_until(page, "location.hash.endsWith('colour=kind')")
        expect(page.locator(".legend.by-kind")).to_be_visible()
        content = "(e) => getComputedStyle(e, '::before').content"
        assert page.locator(".sample .run.s").first.evaluate(content) == '"sampled "'
        page.keyboard.press("3")
        expect(page.locator(".by-prob .sample .q3").first).to_be_attached()
        page.keyboard.press("4")
        expect(page.locator(".legend .run")).to_have_text(["step-7", "step-8"])
        assert page.locator(".sample .run.s").first.evaluate(content) == '"⟨step-7⟩ "'
        page.keyboard.press("5")
        wait_until(page, "location.hash.endsWith('colour=stream%3Aadvantage')")
        # The scale is as wide on both sides of 0, so that the sign can be seen.
        classes = [re.compile(rf"\ba{min(4, int(5 * (value + 4) // 8))}\b") for value in advantages[0]]
        expect(page.locator(".sample").first.locator("i[class*=a]")).to_have_class(classes)
        pool.look("rollout-advantage")
        page.keyboard.press("5")
        wait_until(page, "location.hash.endsWith('entropy')")
        expect(page.locator(".sample i[class*=a]")).to_have_count(1)
        expect(page.locator(".legend")).to_contain_text("all 0.25")
        page.keyboard.press("0")
        wait_until(page, "location.hash.endsWith('plain')")
        expect(page.locator(".sample i[class*=a]")).to_have_count(0)
        page.keyboard.press("t")
        inspected(page, "advantage -2 entropy 0.25 position")


def test_rewards_per_token_of_a_grader_are_a_layer(browser: Browser) -> None:
    result = forked()
    rewards = [[0.0] * len(one.response_ids) for one in result.samples]
    rewards[0][-1] = 1.0
    with viewed(browser) as pool:
        pool.answers = rollout_answers(result.model_copy(update={"token_rewards": rewards}))
        page = opened(pool, "?colour=stream:token_rewards")
        painted = page.locator(".sample").first.locator("i[class*=a]")
        expect(painted).to_have_count(len(rewards[0]))
        assert "a4" in (painted.last.get_attribute("class") or "")
        assert painted.first.get_attribute("class") == painted.nth(1).get_attribute("class")
        assert painted.first.get_attribute("class") != painted.last.get_attribute("class")


def test_keys_go_through_runs_and_tokens_and_open_what_is_folded(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = rollout_answers(forked())
        page = opened(pool)
        here = page.locator("i.here")
        for keys, text in (("j", "<"), ("j", "<"), ("l", "t"), ("h", "<"), ("h", "k"), ("k", "<")):
            page.keyboard.press(keys)
            expect(here, keys).to_have_text(text)
        expect(page.locator("details[open] i.here")).to_have_count(1)
        page.keyboard.press("T")
        page.keyboard.press("T")
        inspected(page, "turn 2")
        inspected(page, "sample 2")
        page.keyboard.press("k")
        inspected(page, "from prompt")
        # The shared prompt of a fork is folded; going there opens it.
        page.keyboard.press("k")
        inspected(page, "from shared")
        expect(page.locator("details[open] i.here")).to_have_count(1)


def test_a_token_has_an_address(browser: Browser) -> None:
    result = forked()
    with viewed(browser) as pool:
        pool.answers = rollout_answers(result)
        page = opened(pool, "?at=1.12")
        page.locator("i.here").wait_for()
        ids = [*result.samples[1].prompt_ids, *result.samples[1].response_ids]
        inspected(page, f"id {ids[12]}")
        page.locator(".sample .run.g .block").click(position={"x": 12, "y": 30})
        wait_until(page, "!location.hash.includes('at=1.12')")
        expect(page.locator(".inspector a")).to_have_attribute("href", page.evaluate("location.hash"))
        for number, wrong in enumerate(("9.9", "0.99999", "x", "-1.-1", "0.", "1e9.1e9")):
            # The colour tells this view from the one before.
            colour = ("kind", "prob")[number % 2]
            page = opened(pool, f"?colour={colour}&at={wrong}")
            expect(page.locator(f".legend.by-{colour}")).to_be_visible()
            expect(page.locator("h2", has_text="Tokens")).to_be_visible()


def test_times_of_turns_and_tools_and_what_a_rollout_waits_for(browser: Browser) -> None:
    tools = [ToolTime(name="search", ms=500.0, ok=True), ToolTime(name=EVIL[:60], ms=250.0, ok=False)]
    result = forked(spans={"queued_ms": 1000.0, "total_ms": 4000.0})
    result = result.model_copy(
        update={
            "turns": [
                turn(1, start_ms=1000.0, llm_ms=1500.0, tools=tools),
                turn(2, "thinking_stripped", start_ms=3000.0, llm_ms=1000.0),
                turn(3, start_ms=4000.0, llm_ms=1000.0),
            ]
        }
    )
    with viewed(browser) as pool:
        pool.answers = rollout_answers(result)
        page = opened(pool)
        labels = [lane.get_attribute("aria-label") for lane in page.locator("td .lane").all()]
        assert labels == ["queued 1.0 s, model 1.5 s, tools 500 ms", "model 1.0 s", "model 1.0 s"]
        assert "search ✓ 500 ms, <script>" in page.locator("tbody tr").first.inner_text()
        assert "✕ 250 ms" in page.locator("tbody tr").first.inner_text()
        spans = page.locator("td .lane").nth(2).locator("i").evaluate("i => [i.style.left, i.style.width]")
        assert spans == ["80%", "20%"]
        waits = {"waits_for": "trainer", "endpoint": "http://t", "status": 503, "message": "weights load", "tries": 3}
        pool.answers[f"/v1/rollouts/{UID}"] |= {
            "result": None,
            "status": "running",
            "waiting": {**waits, "rollouts": 1},
        }
        page = pool.open(f"?again#/rollout/{UID}")
        expect(page.locator(".alert")).to_contain_text("503 weights load; tried 3 times")


def test_siblings_are_one_key_away(browser: Browser) -> None:
    results = [forked(group="g 1/a,b"), forked(group="other"), forked(group="g 1/a,b")]
    with viewed(browser) as pool:
        pool.answers = rollout_answers(*results)
        rows = pool.answers[f"/v1/batches/{BATCH}/rollouts"]
        rows["columns"] = {"uid": [f"{BATCH}-0", f"{BATCH}-2"]}
        page = opened(pool)
        pool.until_asked(f"/v1/batches/{BATCH}/rollouts", {"fields": "uid", "limit": "1000", "where": "group=g 1/a,b"})
        page.get_by_text("compare with the next").wait_for()
        page.keyboard.press("n")
        wait_until(page, f"location.hash.startsWith('#/rollout/{BATCH}-2')")
        page.get_by_text("compare with the one before").wait_for()
        page.keyboard.press("c")
        wait_until(page, f"location.hash === '#/compare/{BATCH}-2/{BATCH}-0'")


def test_a_callers_own_name_leads_to_the_uid(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = rollout_answers(forked())
        pool.answers["/v1/rollouts/my%20name"] = pool.answers[f"/v1/rollouts/{UID}"]
        page = pool.open("#/rollout/my%20name")
        wait_until(page, f"location.hash === '#/rollout/{UID}'")
        page.locator(".block").first.wait_for(state="attached")


def test_records_that_contradict_themselves_are_no_footnote(browser: Browser) -> None:
    wrong = sample("ask", ("glue", "a", 1)).model_copy(update={"response_mask": [1]})
    short = sample("ask", ("sampled", "abc", 1)).model_copy(update={"response_logprobs": [0.0]})
    odd = sample("ask", ("sampled", "abc", 1))
    odd = odd.model_copy(
        update={
            "segments": [
                SampleSegment(kind="sampled", start=1, n=10**9, turn=1),
                SampleSegment(kind="glue", start=0, n=2, turn=1),
            ]
        }
    )
    with viewed(browser) as pool:
        pool.answers = rollout_answers(rollout(wrong), rollout(short), rollout(odd))
        page = opened(pool)
        assert "This record contradicts itself" in page.locator(".alert").inner_text()
        expect(page.locator(".run.contradicts")).to_have_count(1)
        page = pool.open(f"#/rollout/{BATCH}-1")
        page.get_by_text("a sample has 3 response ids, 3 mask values and 1 log-probabilities").wait_for()
        page = pool.open(f"#/rollout/{BATCH}-2")
        page.locator(".run.x").wait_for(state="attached")
        assert drawn(page) == 6


def test_no_text_of_a_rollout_runs_loads_or_becomes_an_element(browser: Browser) -> None:
    call = ToolCall(id=EVIL, function=FunctionCall(name=EVIL, arguments=EVIL))
    failure = Failure(
        kind=FailureKind.INFRA, boundary=Boundary.TRAINER, category=Category.NETWORK_ERROR, message=EVIL, retryable=True
    )
    evil = rollout(
        sample(EVIL, ("sampled", EVIL, 1), ("glue", EVIL, 1), policy=EVIL),
        labels={EVIL: EVIL},
        group=EVIL,
        rollout_id=EVIL,
        warnings=[EVIL],
        drift={EVIL: 1},
        status=RolloutStatus.FAILED,
        failure=failure,
        worker=EVIL,
        turns=[turn(1, EVIL, policy_version=EVIL, finish_reason=EVIL)],
        messages=[
            Message(role="user", content=EVIL),
            Message(role="user", content=[{"type": "text", "text": EVIL}]),
            Message(role="assistant", content=EVIL, reasoning_content=EVIL, tool_calls=[call]),
            Message(role="tool", content=f"Error: {EVIL}", tool_call_id=EVIL),
        ],
    )
    with viewed(browser) as pool:
        pool.answers = rollout_answers(evil)
        streams = {EVIL: [[1.0] * len(evil.samples[0].response_ids)]}
        pool.answers[f"/v1/rollouts/{UID}/annotations"] = {"uid": UID, "scalars": {EVIL: 1.0}, "streams": streams}
        page = opened(pool, "?colour=version")
        for key in ("j", "j", "j", "5", "?"):
            page.keyboard.press(key)
        assert "owned" not in page.title()
        assert page.locator("main script, main img, main iframe, main object").count() == 0
        shown = EVIL.replace("\u202e", "⟨U+202E⟩")
        assert page.locator("pre").first.inner_text() == shown
        assert f"rolloutpool logs --id {UID}" in page.locator("main").inner_text()
        # Errors are marked where they happened.
        assert page.locator(".message .bad").all_inner_texts() == ["✕ error"]
        assert page.locator("aside > .bad").inner_text() == "✕ network_error"
        assert shown in page.locator(".sample .run.m").evaluate("run => run.textContent")
        for view in ("proof", "compare"):
            page = pool.open(f"?{view}#/{view}/{UID}/{UID}")
            page.locator("h2").first.wait_for()
            assert page.locator("main script, main img").count() == 0


def cpu(session: CDPSession) -> float:
    """Seconds that the page's main thread has worked."""
    metrics = {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


def long_rollout(tokens: int) -> Any:
    """A rollout of so many tokens in 128 turns, with words that a search can look for."""
    words = [f"word{number} ".encode() for number in range(tokens // 8)]
    ids = list(b"".join(words))[:tokens]
    prompt, response = ids[:8192], ids[8192:]
    n = len(response) // 256
    kinds = ["sampled", "glue"]
    segments = [SampleSegment(kind=kinds[at % 2], start=at * n, n=n, turn=at // 2 + 1) for at in range(256)]
    mask = [int(at // n % 2 == 0 and at < 256 * n) for at in range(len(response))]
    logprobs = [-(at % 50) / 10 * mask[at] for at in range(len(response))]
    return rollout(
        Sample(
            prompt_ids=prompt, response_ids=response, response_mask=mask, response_logprobs=logprobs, segments=segments
        ),
        turns=[turn(number) for number in range(1, 129)],
    )


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_131_072_tokens(browser: Browser) -> None:
    result = long_rollout(131_072)
    with viewed(browser) as pool:
        pool.answers = rollout_answers(result)
        pool.answers["/v1/batches"] = {"batches": [], "next_cursor": None}
        page = pool.open()
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        paints = []
        for _ in range(3):
            page.evaluate("location.hash = '#/'")
            page.locator("h1", has_text="Batches").wait_for()
            before = cpu(session)
            page.evaluate(f"location.hash = '#/rollout/{UID}'")
            page.locator(".block").first.wait_for(state="attached")
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            paints.append(cpu(session) - before)
        took = {"paint": min(paints)}
        shown = page.locator(".sample .block").evaluate_all("list => list.map(block => block.textContent).join('')")
        assert shown == bytes([*result.samples[0].prompt_ids, *result.samples[0].response_ids]).decode()
        for key in ("3", "2", "4", "1"):
            before = cpu(session)
            page.keyboard.press(key)
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            took[key] = cpu(session) - before
        print({name: f"{seconds * 1000:.0f} ms" for name, seconds in took.items()})
        # Three times the budgets of 500 and 200 ms, and the best of three paints: a busy machine makes the same work
        # take longer. A page that lays out every token takes far more.
        assert took["paint"] < 1.5
        assert max(seconds for name, seconds in took.items() if name != "paint") < 0.6
        # The browser's own search finds what was never laid out, and what is folded.
        for word in ("word9000 ", "word12 "):
            assert page.evaluate("word => { getSelection().removeAllRanges(); return find(word); }", word), word
        page.keyboard.press("t")
        box = page.locator("i.here").bounding_box()
        assert box is not None
        assert 0 <= box["y"] <= 760
        pool.look("rollout-long")


@pytest.mark.parametrize(("total", "beside"), [(1, 0), (2, 1)])
def test_only_rollouts_that_are_in_the_batch_are_offered(browser: Browser, total: int, beside: int) -> None:
    with viewed(browser) as pool:
        pool.answers = rollout_answers(rollout(), pieces=False) | answers(total)
        page = pool.open(f"#/rollout/{BATCH}-0")
        page.get_by_text("There are no samples").wait_for()
        pool.until_answered()
        expect(page.get_by_role("link", name="next", exact=False)).to_have_count(2 * beside)
        # There is none to be shown so.
        assert page.get_by_text("Tokens are shown as ids").count() == 0
