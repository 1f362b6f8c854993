"""Each view of the viewer is usable by everybody, in light and dark, as far as axe can tell."""

from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from tests.support.axe import needs_axe, violations
from tests.support.browsers import needs_browser
from tests.support.finished_rollouts import forked, rollout, sample, turn
from tests.support.viewed_batches import BATCH, answers, batch_line, rollout_answers
from tests.support.viewed_pool import viewed

from rolloutpool_common.capabilities.harness.wire import HarnessReport, LineKind, LineReport
from rolloutpool_common.protocol.messages import FunctionCall, Message, ToolCall
from rolloutpool_common.protocol.result import ToolTime

pytestmark = [*needs_browser, needs_axe]

UID = f"{BATCH}-0"
TABLE = "#row-0, .alert:has-text('Waits for')"
ROLLOUT = ".block, summary:has-text('History')"
VIEWS = {
    "batches": ("", "tbody tr"),
    "batch": (f"#/batch/{BATCH}?sort=-turns", TABLE),
    "groups": (f"#/groups/{BATCH}", TABLE),
    "group": (f"#/group/{BATCH}/g1", ".siblings"),
    "lanes": (f"#/lanes/{BATCH}", TABLE),
    "rollout-mask": (f"#/rollout/{UID}?at=1.40", ROLLOUT),
    "rollout-origin": (f"#/rollout/{UID}?colour=kind", ROLLOUT),
    "rollout-probability": (f"#/rollout/{UID}?colour=prob", ROLLOUT),
    "rollout-version": (f"#/rollout/{UID}?colour=version", ROLLOUT),
    "rollout-annotation": (f"#/rollout/{UID}?colour=stream:advantage", ROLLOUT),
    "proof": (f"#/proof/{UID}", ".verdict"),
    "compare": (f"#/compare/{UID}/{BATCH}-1", ".sides"),
    "nothing": ("#/nonsense", "h1"),
}
"""For each view its address, and what is drawn from its answers, each from one of them."""


def everything() -> dict[str, Any]:
    call = ToolCall(id="c1", function=FunctionCall(name="search", arguments='{"q": 1}'))
    messages = [
        Message(role="user", content="ask"),
        Message(role="assistant", content="so", reasoning_content="hm", tool_calls=[call]),
        Message(role="tool", content="42", tool_call_id="c1"),
    ]
    line = LineReport(line=1, kind=LineKind.MAIN, why="it leads", turns=2, tokens=9, trained_tokens=9, samples=[0, 1])
    report = HarnessReport(calls=2, lines=[line, line.model_copy(update={"line": 2, "parent": 1})])
    tools = [ToolTime(name="mcp__playwright__browser_take_screenshot", ms=50, ok=False, error="TimeoutError")]
    turns = [turn(1, policy_version="qwen3-8b-long-run-step-000123", start_ms=5, llm_ms=50, tools=tools), turn(2)]
    first = forked(messages=messages, labels={"step": "3"}, warnings=["zero_logprobs"], harness=report)
    first = first.model_copy(update={"turns": [*turns, *first.turns[2:]]})
    other = rollout(sample("<user>ask", ("sampled", "<think>no</think>", 1), ("glue", "42", 1)))
    made = rollout_answers(first, other) | answers(64, **{f"annotations.{'of_the_judge_' * 5}": [0.5] * 64})
    advantages = [[(at % 9 - 4) / 4 for at in range(len(one.response_ids))] for one in first.samples]
    said = {"uid": UID, "scalars": {"reward": 1.0}, "streams": {"advantage": advantages}}
    attempt = {"attempt": 1, "worker": "w1", "claimed_ms": 5, "ended_ms": 9, "outcome": "requeued", "turns": 1}
    attempt |= {"reason": "deaths", "detail": "signal:9", "delay_ms": 20}
    history = {"uid": UID, "status": "failed", "accepted_ms": 1, "ended_ms": 9, "not_before_ms": None}
    waits = {"waits_for": "trainer", "endpoint": "http://t", "status": 503, "message": "m", "tries": 3, "rollouts": 2}
    return {
        **made,
        "/v1/batches": {"batches": [batch_line(1), batch_line(2, state="complete")], "next_cursor": "x"},
        f"/v1/batches/{BATCH}": made[f"/v1/batches/{BATCH}"] | {"waiting": [waits], "labels": {"step": "3"}},
        f"/v1/rollouts/{UID}/annotations": said,
        f"/v1/rollouts/{UID}/history": {**history, "attempts": [attempt]},
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", VIEWS)
def test_axe_finds_nothing(browser: Browser, name: str, scheme: str) -> None:
    with viewed(browser, scheme=scheme) as pool:
        pool.answers = everything()
        address, drawn = VIEWS[name]
        page = pool.open(address)
        for part in drawn.split(", "):
            page.locator(part).first.wait_for(state="attached")
        if drawn == ROLLOUT:
            page.locator("details:not([open]) > summary").evaluate_all("list => list.forEach(one => one.click())")
        page.keyboard.press("?")
        page.keyboard.press("j")
        expect(page.locator(".help")).to_be_visible()
        pool.look(f"{name}-{scheme}")
        assert violations(page) == []
