"""The viewer in front of a real pool and of a real file: from the list to a token, one click each."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, expect
from tests.support.browsers import needs_browser
from tests.support.served_policy import ServedPolicy
from tests.support.waiting import eventually

from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import LocalPool, RolloutClient

pytestmark = needs_browser

COMMAND = str(Path(sys.executable).with_name("rolloutpool"))
QUESTION = "Calculate (15 + 23) * 4"


@contextmanager
def watched(browser: Browser, address: str) -> Iterator[Page]:
    """A page that nothing may complain about."""
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    yield page
    context.close()
    # The browser itself notes each answer that is an error.
    assert [text for text in complaints if "status of 404" not in text] == []


@contextmanager
def viewer_of(source: str) -> Iterator["subprocess.Popen[str]"]:
    """`rolloutpool view` of a file or a pool; its address is the first line that it prints."""
    command = [COMMAND, "view", source, "--tokenizer", TINY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def to_the_tokens(page: Page, batch_id: str, trained: list[int], tokenizer: ChatTokenizer | None) -> None:
    """Goes from the list of batches to the first trained token."""
    page.get_by_role("link", name=batch_id[:8]).click()
    page.locator("#row-0").wait_for()
    page.get_by_role("link", name="groups").click()
    page.get_by_role("grid", name="groups:").locator("#row-0").click()
    page.locator(".siblings thead a").first.click()
    page.locator(".block").first.wait_for(state="attached")
    page.keyboard.press("t")
    expect(page.locator(".inspector")).to_contain_text(re.compile(rf"\bid {trained[0]}\s"), use_inner_text=True)
    assert page.locator(".sample .run.m i").count() == len(trained)
    if tokenizer is not None:
        shown = "".join(page.locator(".sample .run.m").evaluate_all("runs => runs.map(run => run.textContent)"))
        assert shown.replace("↵\n", "\n") == tokenizer.decode(trained)


def test_from_the_list_to_a_token(
    pool: LocalPool,
    client: RolloutClient,
    trainer: ServedPolicy,
    browser: Browser,
    tmp_path: Path,
    tokenizer: ChatTokenizer,
) -> None:
    item = {"group": "g1", "n": 2, "messages": [{"role": "user", "content": QUESTION}]}
    batch = client.submit([item], defaults={"tokenizer_name": TINY}, trainer=trainer.urls)
    results = sorted(batch.results(), key=lambda result: result.index)
    trained = [
        token
        for one in results[0].samples
        for token, mask in zip(one.response_ids, one.response_mask, strict=True)
        if mask
    ]
    pieces = f"{pool.url}/v1/tokenizers/{results[0].tokenizer['tokenizer_sha256']}/pieces"
    eventually(lambda: httpx.get(pieces, trust_env=False).status_code == 200, seconds=30)
    file = tmp_path / "results.jsonl"
    file.write_text("".join(f"{result.model_dump_json()}\n" for result in results))
    with ExitStack() as stack:
        # They start while the browser looks at the pool.
        viewers = [stack.enter_context(viewer_of(source)) for source in (str(file), pool.url)]
        with watched(browser, f"{pool.url}/ui") as page:
            to_the_tokens(page, batch.batch_id, trained, tokenizer)
            assert page.get_by_text(QUESTION).count() > 0
            # The times of turns and tools are the pool's own.
            labels = [lane.get_attribute("aria-label") or "" for lane in page.locator("td .lane").all()]
            assert len(labels) == len(results[0].turns)
            assert all("model" in label for label in labels)
            page.get_by_text("compare with the next").wait_for()
            page.keyboard.press("c")
            page.get_by_role("heading", name="Compare two rollouts").wait_for()
            page.get_by_text(re.compile("tokens are the same")).wait_for()
            page.goto(f"{pool.url}/ui#/lanes/{batch.batch_id}")
            page.locator("#row-1 .lane i").first.wait_for()
        for process in viewers:
            assert process.stdout is not None
            with watched(browser, process.stdout.readline().strip()) as page:
                to_the_tokens(page, batch.batch_id, trained, tokenizer)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20) == 0
