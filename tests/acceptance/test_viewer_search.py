"""Search in the texts of rollouts, in a real browser: over a file, and over what the browser has loaded of a pool.

It needs Chromium and axe, so `make test-viewer` runs it.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.support.axe import needs_axe, violations
from tests.support.browsers import needs_browser, wait_until
from tests.support.finished_rollouts import BYTES, forked, rollout, sample
from tests.support.viewed_batches import BATCH, EVIL, batch_state, rollout_answers
from tests.support.viewed_pool import SCREENSHOTS, viewed

from rolloutpool_common.protocol.messages import FunctionCall, Message, ToolCall
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_trainer.viewer.result_file import ResultFile
from rolloutpool_trainer.viewer.server import ViewerServer
from rolloutpool_trainer.viewer.text_matches import TextFinder, texts_of_message

pytestmark = [*needs_browser, needs_axe]


def said(index: int, *texts: str, **changes: Any) -> RolloutResult:
    """A rollout of `BATCH` whose messages, from the user, the policy and a tool in turn, are these."""
    roles = ("user", "assistant", "tool")
    call = ToolCall(id="c1", function=FunctionCall(name="search", arguments='{"q": 1}'))
    messages = [
        Message(
            role=roles[at % 3],
            content=text,
            tool_calls=[call] if at % 3 == 1 else None,
            tool_call_id="c1" if at % 3 == 2 else None,
        )
        for at, text in enumerate(texts)
    ]
    place = {"uid": f"{BATCH}-{index}", "rollout_id": f"task-{index}", "batch_id": BATCH, "index": index}
    return forked(messages=messages, tokenizer={"tokenizer_sha256": "bytes"}, **changes).model_copy(update=place)


def results() -> list[RolloutResult]:
    """Sixty rollouts; every fourth says the word, and the last has no messages."""
    long = "There is much to read before. " * 40
    found = [
        said(index, "Where is it?", f"{long}I look.", f"In drawer {index} lies a Nädel, {EVIL} beside it.")
        if index % 4 == 0
        else said(index, "Where is it?", f"{long}I look.", "Nowhere.")
        for index in range(60)
    ]
    return [*found, said(60)]


@contextmanager
def file_viewer(browser: Browser, path: Path, scheme: str = "light") -> Iterator[tuple[Page, str]]:
    """A page in front of `rolloutpool view FILE`, and that address; nothing may complain."""
    complaints: list[str] = []
    pieces = {"bytes": BYTES.model_dump_json().encode()}
    server = ViewerServer(ResultFile(path), pieces=pieces.get)
    serving = threading.Thread(target=server.serve)
    serving.start()
    context = browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light", viewport={"width": 1280, "height": 800}
    )
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        yield page, server.address
    finally:
        context.close()
        server.stop()
        serving.join()
        server.close()
    # A file has no history and no annotations, and the browser itself notes each answer that is an error.
    assert [text for text in complaints if "status of 404" not in text] == []


def look(page: Page, name: str) -> None:
    """Keeps a picture, as the other tests of the viewer do."""
    if SCREENSHOTS is not None:
        Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "results.jsonl"
    file.write_text("".join(f"{result.model_dump_json()}\n" for result in results()))
    return file


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_match_in_a_file_is_found_and_followed_by_keys(browser: Browser, path: Path, scheme: str) -> None:
    with file_viewer(browser, path, scheme) as (page, address):
        page.goto(f"{address}#/batch/{BATCH}")
        page.locator("#row-0").wait_for()
        page.keyboard.press("f")
        expect(page.get_by_label("text to find")).to_be_focused()
        page.keyboard.type("NÄDEL")
        page.keyboard.press("Enter")
        status = page.locator(".searched")
        expect(status).to_have_text("15 matches in 15 rollouts; searched 61 of 61 rollouts of this batch.")
        wait_until(page, f"location.hash === '#/search/{BATCH}?q=N%C3%84DEL'")
        row = page.locator("#row-1")
        assert row.locator("mark").inner_text() == "Nädel"
        cells = row.locator(".cell").all_inner_texts()
        assert cells[:3] == ["4", "task-4", "message 3, tool"]
        assert "In drawer 4 lies a Nädel, <script>document.title='owned'</script>" in cells[3]
        assert "⟨U+202E⟩" in cells[3]
        box = row.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 800
        page.keyboard.press("j")
        page.keyboard.press("j")
        expect(row).to_have_attribute("aria-selected", "true")
        look(page, f"search-{scheme}")
        assert violations(page) == []
        # The link leads where the key does.
        link = row.locator("a").get_attribute("href")
        page.keyboard.press("Enter")
        mark = page.locator("mark.here")
        mark.wait_for()
        assert link == f"#/rollout/{BATCH}-4?find=N%C3%84DEL&message=2&match=0"
        wait_until(page, f"location.hash === '{link}'")
        page.locator(".sample .block").first.wait_for(state="attached")
        expect(mark).to_be_focused()
        expect(mark).to_be_in_viewport()
        assert mark.inner_text() == "Nädel"
        assert page.locator(".found").inner_text().startswith("1 match of “NÄDEL”")
        # It can be told without colour.
        assert "underline" in mark.evaluate("mark => getComputedStyle(mark).textDecorationLine")
        look(page, f"search-match-{scheme}")
        assert violations(page) == []
        # The way back is the list as it was left.
        page.go_back()
        expect(page.locator("#row-1")).to_have_attribute("aria-selected", "true")
        expect(status).to_have_text("15 matches in 15 rollouts; searched 61 of 61 rollouts of this batch.")
        assert page.title().endswith("rolloutpool")


def test_the_address_alone_shows_the_same_and_no_match_is_said(browser: Browser, path: Path) -> None:
    with file_viewer(browser, path) as (page, address):
        page.goto(f"{address}#/search?q=n%C3%A4del&case=1")
        status = page.locator(".searched")
        expect(status).to_have_text("0 matches in 0 rollouts; searched 61 of 61 rollouts of this file.")
        expect(page.get_by_label("text to find")).to_have_value("nädel")
        page.get_by_label("match case").uncheck()
        expect(status).to_have_text("15 matches in 15 rollouts; searched 61 of 61 rollouts of this file.")
        wait_until(page, "location.hash === '#/search?q=n%C3%A4del'")
        # What only tokens say is found where a rollout has no messages.
        page.get_by_label("text to find").fill("so it is 42")
        page.keyboard.press("Enter")
        expect(status).to_have_text("1 match in 1 rollout; searched 61 of 61 rollouts of this file.")
        expect(page.locator("#row-0 .cell").nth(2)).to_have_text("sample 2, turn 2")
        page.locator("#row-0 a").click()
        page.locator("i.here").wait_for()
        expect(page.locator(".inspector")).to_contain_text("reads s", use_inner_text=True)


def test_many_matches_stop_until_somebody_wants_more(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text("".join(f"{said(index, 'e ' * 30).model_dump_json()}\n" for index in range(80)))
    with file_viewer(browser, path) as (page, address):
        page.goto(f"{address}#/search/{BATCH}?q=e")
        status = page.locator(".searched")
        # All matches of the answer that brings the thousandth are listed, and an answer ends by the clock.
        some = r"1,0\d\d matches"
        stopped = rf"^{some} in (5\d) rollouts; searched \1 of 80 rollouts of this batch; stopped after {some}; "
        expect(status).to_have_text(re.compile(rf"{stopped}of \1 rollouts only the first matches are listed\.$"))
        assert page.locator(".all .row").count() < 100
        page.get_by_role("button", name="search on").click()
        expect(status).to_contain_text("1,600 matches in 80 rollouts; searched 80 of 80 rollouts of this batch")
        page.locator(".grid").focus()
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        wait_until(page, f"location.hash === '#/rollout/{BATCH}-79?find=e&message=0&match=19'")
        page.locator("mark.here").wait_for()
        assert page.locator("aside mark").count() == 30


def test_of_a_pool_what_is_loaded_is_searched_and_the_page_says_so(browser: Browser) -> None:
    found = results()
    with viewed(browser) as pool:
        pool.answers = rollout_answers(*found)
        pool.answers[f"/v1/batches/{BATCH}"] = batch_state(len(found))
        page = pool.open(f"#/rollout/{BATCH}-4")
        page.locator(".block").first.wait_for(state="attached")
        page.keyboard.press("f")
        page.keyboard.type("nädel")
        page.keyboard.press("Enter")
        status = page.locator(".searched")
        expect(status).to_have_text(
            "1 match in 1 rollout; searched 1 of 61 rollouts of this batch: those that this tab has loaded."
        )
        views = [pool.answers[f"/v1/rollouts/{BATCH}-{index}"] for index in range(61)]
        items = [{"cursor": str(index + 1), "result": view["result"]} for index, view in enumerate(views)]
        path = f"/v1/batches/{BATCH}/results"
        pool.answers[path] = {"items": items[:50], "next_cursor": "50", "complete": False}
        more = page.get_by_role("button", name="load more rollouts of this batch")
        more.click()
        expect(status).to_contain_text("13 matches in 13 rollouts; searched 50 of 61 rollouts")
        look(page, "search-of-a-pool")
        assert violations(page) == []
        pool.answers[path] = {"items": items[50:], "next_cursor": "61", "complete": True}
        more.click()
        expect(status).to_contain_text("15 matches in 15 rollouts; searched 61 of 61 rollouts")
        expect(more).to_have_count(0)
        assert [query["cursor"] for asked, query in pool.asked if asked == path] == ["0", "50"]
        # Nothing is asked of the pool to search.
        assert not any("search" in asked for asked, _ in pool.asked)
        page.get_by_label("text to find").fill("so it is 42")
        page.keyboard.press("Enter")
        expect(status).to_contain_text("1 match in 1 rollout; searched 61 of 61 rollouts")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        wait_until(page, f"location.hash.startsWith('#/rollout/{BATCH}-60?at=1.')")
        assert page.title().endswith("rolloutpool")


CASES = [
    ("needle", "a Needle, NEEDLE and needles"),
    ("über", "ÜBER Über"),
    ("ΟΔΟΣ", "οδος οδοσ ΟΔΟΣΙ"),
    ("straße", "STRAẞE, STRASSE"),
    ("🙂", "a 🙂🙂"),
    ("k", "\u212a K"),
    ("aa", "aaaaa"),
    (".*", "a.*b"),
    ("a|b/c-d", "A|B/C-D"),
    ("[x]{2}(y)^$\\?+", "..[X]{2}(Y)^$\\?+.."),
    ("é", "e\u0301 É"),
    ("\u202e", EVIL),
]


def test_pages_and_files_are_searched_by_the_same_rules(browser: Browser) -> None:
    call = FunctionCall(name="f", arguments={"a": [1, "ü", None, True], "b": {"c": "d"}})
    messages = [
        Message(
            role="user", content=[{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {"url": "u"}}]
        ),
        Message(role="assistant", content="x", reasoning_content="y", tool_calls=[ToolCall(id="c", function=call)]),
        Message(role="tool", content="", tool_call_id="c"),
        Message(
            role="assistant",
            content=None,
            tool_calls=[ToolCall(id="c", function=FunctionCall(name="f", arguments="{"))],
        ),
    ]
    with viewed(browser) as pool:
        pool.answers["/v1/batches"] = {"batches": [], "next_cursor": None}
        pool.open()
        for sought, text in CASES:
            expression = "m.spansOf(v[1], m.finderOf(v[0], false)).map(([from, to]) => v[1].slice(from, to))"
            ours = [text[start:end] for start, end in TextFinder(sought).spans(text)]
            assert pool.module("finding.js", expression, [sought, text]) == ours, sought
        for message in messages:
            drawn = pool.module("finding.js", "m.drawnOf(v)", message.wire())
            texts = [[kind, said] for kind, said in texts_of_message(message) if said]
            assert [pair for pair in drawn if pair[0] != "part"] == texts
        # No character is cut in two.
        cut = pool.module("finding.js", "m.around(v, [41, 42])", "🙂" * 20 + "ax" + "🙂" * 100)
        assert not re.search("[\ud800-\udfff]", cut["before"] + cut["after"])


def test_a_rollout_without_text_has_no_place_to_mark(browser: Browser) -> None:
    with viewed(browser) as pool:
        pool.answers = rollout_answers(
            rollout(sample("ask", ("sampled", "abc", 1)), messages=[Message(role="user", content="x")])
        )
        for wrong in ("find=x&message=9", "find=x&message=y&match=z", "find=%5B&message=0", "message=-1&match=1e9"):
            page = pool.open(f"?{wrong}#/rollout/{BATCH}-0?{wrong}")
            page.locator(".block").first.wait_for(state="attached")
            assert page.locator("mark.here").count() == 0
