"""A rollout in the viewer, in a real browser: every token with its origin. Needs Chromium, as test_viewer.py."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright
from tests.support.finished_rollouts import forked, rollout, sample
from tests.support.viewed_pool import viewed

from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import RolloutResult

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
REQUIRED = os.environ.get("ROLLOUTPOOL_REQUIRE_BROWSER") == "1"
EVIL = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
BATCH = "b" + "1" * 32
UID = f"{BATCH}-0"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None and not REQUIRED, reason="chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without its sandbox, which a container has no rights for."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


def answers(result: RolloutResult) -> dict[str, Any]:
    document = result.model_dump(mode="json")
    view = {"uid": UID, "rollout_id": result.rollout_id, "batch_id": BATCH, "index": 0, "group": None}
    return {
        f"/v1/rollouts/{UID}": {
            **view,
            "status": "completed",
            "attempt": 1,
            "worker": None,
            "turns": 1,
            "result": document,
        }
    }


def test_the_mask_is_the_results_own_and_t_leads_to_the_first_trained_token(browser: Browser) -> None:
    result = forked()
    with viewed(browser) as pool:
        pool.answers = answers(result)
        page = pool.open(f"#/rollout/{UID}")
        page.locator(".block").first.wait_for(state="attached")
        assert page.locator(".sample .run.m i").count() == sum(sum(one.response_mask) for one in result.samples)
        assert page.locator(".sample i").count() == sum(len(s.prompt_ids) + len(s.response_ids) for s in result.samples)
        page.keyboard.press("t")
        first = result.samples[0]
        place = first.response_mask.index(1)
        assert f"id {first.response_ids[place]}" in page.locator(".inspector").inner_text().replace("\n", " ")
        box = page.locator("i.here").bounding_box()
        assert box is not None
        assert 0 <= box["y"] <= 760


def test_no_text_of_a_rollout_runs_loads_or_becomes_an_element(browser: Browser) -> None:
    labels = {EVIL: EVIL}
    evil = rollout(
        sample("p", ("sampled", "s", 1), policy=EVIL), labels=labels, messages=[Message(role="user", content=EVIL)]
    )
    with viewed(browser) as pool:
        pool.answers = answers(evil)
        page = pool.open(f"#/rollout/{UID}")
        page.locator("pre").first.wait_for()
        assert "owned" not in page.title()
        assert page.locator("main script, main img").count() == 0
        assert EVIL in page.locator("pre").first.inner_text()
