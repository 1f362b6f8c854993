"""The page of a rollout in a real browser: it obeys nobody, and what it shows is what the trainer counted.

Needs Chromium (Debian: `apt-get install chromium`). Without it the tests are skipped, and fail where
ROLLOUTPOOL_REQUIRE_BROWSER=1 says that it has to be there.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.support.browsers import needs_browser, wait_until
from tests.support.finished_rollouts import BYTES, decode, forked, rollout, sample, turn
from tests.support.served_policy import ServedPolicy
from typer.testing import CliRunner

from rolloutpool_common.protocol.messages import FunctionCall, Message, ToolCall
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import LocalPool, RolloutClient
from rolloutpool_trainer.cli import app
from rolloutpool_trainer.viewer.html import rollout_page

ATTACKS = (
    "<script>document.title='owned'</script>",
    "</script><script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "' autofocus onfocus=document.title='owned' x='",
    "</style><link rel=stylesheet href=http://127.0.0.1:9/x.css>",
    "<iframe src=javascript:parent.document.title='owned'></iframe>",
    "<meta http-equiv=refresh content=0;url=http://127.0.0.1:9/>",
)

pytestmark = needs_browser

Opener = Callable[..., Page]


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Opener]:
    """Opens a result's page; at the end no page has complained, asked anything or reached out."""
    complaints: list[str] = []
    contexts = []

    def opened(result: RolloutResult, *, scripts: bool = True, scheme: str = "light", at: str = "") -> Page:
        file = tmp_path / "page.html"
        named = result.model_copy(update={"tokenizer": {"tokenizer_sha256": BYTES.tokenizer_sha256}})
        file.write_text(rollout_page(named, decode, pieces=BYTES), encoding="utf-8")
        context = browser.new_context(java_script_enabled=scripts, color_scheme="dark" if scheme == "dark" else "light")
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on(
            "request", lambda request: None if request.url.startswith(file.as_uri()) else complaints.append(request.url)
        )
        page.goto(file.as_uri() + at)
        if scripts:
            page.locator(".block").first.wait_for(state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def test_no_text_of_a_model_runs_loads_or_becomes_an_element(show: Opener) -> None:
    evil = "\n".join(ATTACKS)
    call = ToolCall(id="c", function=FunctionCall(name=ATTACKS[0], arguments=evil))
    page = show(
        rollout(
            sample(evil, ("sampled", evil, 1), ("glue", evil, 1)),
            rollout_id="r <b>0</b>",
            labels={ATTACKS[0]: evil},
            messages=[
                Message(role="user", content=evil),
                Message(role="assistant", content=None, tool_calls=[call]),
                Message(role="tool", content=evil, tool_call_id=ATTACKS[2]),
            ],
            turns=[turn(1, evil, policy_version=evil)],
        )
    )
    for _ in range(4):
        page.keyboard.press("j")
    assert page.title() == "rollout r <b>0</b>"
    assert page.locator("img, iframe, link, object, embed, a:not([href^='#']), h1 b").count() == 0
    assert page.locator("script").count() == 2
    assert evil in page.locator("pre").first.inner_text()


def test_the_policy_stops_a_script_that_got_in_all_the_same(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    broken = rollout_page(forked(), decode).replace('<div id="viewer"', f'{ATTACKS[0]}{ATTACKS[2]}<div id="viewer"')
    file.write_text(broken, encoding="utf-8")
    page = browser.new_page()
    with page.expect_console_message(lambda message: "Content Security Policy" in message.text):
        page.goto(file.as_uri())
    assert page.title() == "rollout r0"
    page.close()


def test_pointing_at_a_token_tells_where_it_came_from(show: Opener) -> None:
    page = show(forked())
    facts = page.locator(".inspector > span")
    page.get_by_text("日", exact=True).hover()
    expect(facts).to_have_text(
        [
            "id 230",
            "reads 日",
            "log-prob -0.5000 (p 0.61)",
            "mask 1",
            "from sampled",
            "turn 1",
            "policy step-7",
            "position 31 in sample 1",
        ]
    )
    page.locator(".sample .run.g .block").first.hover(position={"x": 12, "y": 30})
    expect(facts.filter(has_text="mask")).to_have_text("mask 0")
    expect(facts.filter(has_text="log-prob")).to_have_count(0)


def test_keys_go_through_runs_and_tokens_and_views_stay_in_the_address(show: Opener) -> None:
    page = show(forked())
    here = page.locator("i.here")
    for keys, text in (("j", "<"), ("j", "<"), ("l", "t"), ("h", "<"), ("h", "k"), ("k", "<")):
        page.keyboard.press(keys)
        expect(here, keys).to_have_text(text)
    # The shared prompt is folded; going there opens it.
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("details[open] i.here")).to_have_count(1)
    page.keyboard.press("3")
    page.keyboard.press("b")
    wait_until(page, "location.hash.endsWith('?colour=prob&borders=1')")
    again = show(forked(), at=page.evaluate("location.hash"))
    expect(again.get_by_role("radio", name="probability")).to_be_checked()
    expect(again.get_by_role("checkbox", name="token borders")).to_be_checked()
    expect(again.locator(".legend.by-prob")).to_be_visible()


def test_marks_do_not_hang_on_colour_and_both_schemes_differ(show: Opener) -> None:
    look = """element => {
        const style = getComputedStyle(element);
        return [style.textDecorationLine, getComputedStyle(document.body).backgroundColor];
    }"""
    schemes = [
        show(forked(), scheme=scheme).locator(".tokens .run.m").first.evaluate(look) for scheme in ("light", "dark")
    ]
    assert [mark[0] for mark in schemes] == ["underline"] * 2
    assert schemes[0][1] != schemes[1][1]


def test_without_scripts_everything_can_be_read(show: Opener) -> None:
    page = show(forked(messages=[Message(role="user", content="ask")]), scripts=False)
    text = page.locator("body").inner_text()
    for said in ("über日", "≠ thinking_stripped", "fork of 1", "turn 3", "so it is 42"):
        assert said in text
    assert not page.locator("footer").is_visible()
    assert not page.locator(".keys").is_visible()
    # Views are made by the style alone.
    page.locator("#v-kind").check()
    expect(page.locator(".key.kind")).to_be_visible()


@pytest.mark.timeout(60)
def test_25_000_tokens_stay_usable(show: Opener) -> None:
    parts = [part for n in range(1, 26) for part in (("sampled", "word " * 80, n), ("glue", "tool " * 80, n))]
    page = show(rollout(sample("prompt " * 700, *parts, ("sampled", "end", 26))))
    expect(page.locator("h2", has_text="of 24,903")).to_be_visible()
    for key in ("j", "j", "l", "3", "b", "k"):
        page.keyboard.press(key)
    expect(page.get_by_role("radio", name="probability")).to_be_checked()
    expect(page.get_by_role("checkbox", name="token borders")).to_be_checked()
    page.keyboard.press("1")
    expect(page.get_by_role("radio", name="mask")).to_be_checked()


def test_the_page_of_a_real_rollout_counts_what_its_trainer_counted(
    pool: LocalPool,
    client: RolloutClient,
    trainer: ServedPolicy,
    browser: Browser,
    tokenizer: ChatTokenizer,
    tmp_path: Path,
) -> None:
    item = {"rollout_id": "page-1", "messages": [{"role": "user", "content": "Calculate (15 + 23) * 4"}]}
    (result,) = client.submit([item], defaults={"tokenizer_name": TINY}, trainer=trainer.urls).results()
    file = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["show", result.uid, "--url", pool.url, "--tokenizer", TINY, "--html", str(file)])
    assert done.exit_code == 0, done.output
    page = browser.new_page()
    page.goto(file.as_uri())
    session = trainer.app.get_session(result.rollout_id, result.uid)
    expect(page.get_by_role("region", name="tokens").locator("h2")).to_contain_text(f"trained {session.ones:,} of ")
    trained = [
        token
        for one in session.samples
        for token, mask in zip(one.response_ids, one.response_mask, strict=True)
        if mask
    ]
    assert page.locator(".sample .run.m i").count() == len(trained)
    shown = "".join(page.locator(".sample .run.m").evaluate_all("runs => runs.map(run => run.textContent)"))
    assert shown.replace("↵\n", "\n") == tokenizer.decode(trained)
    assert "Calculate (15 + 23) * 4" in page.locator(".tokens").first.evaluate("box => box.textContent")
    page.close()
