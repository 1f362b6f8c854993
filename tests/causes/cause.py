"""What is wrong with the trainer each time, and what three places say of it: viewer, `rolloutpool status`, metrics."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from playwright.sync_api import Page
from tests.causes.operated_pool import OperatedPool
from tests.causes.trainer import REASON, TEMPLATE_REASON, Manner


@dataclass(frozen=True)
class Cause:
    """One cause. Patterns may hold `URL`, which stands for the trainer's address."""

    manner: Manner
    pool: str | None
    """A pattern of the page of the pool; None where that has nothing to say."""
    viewer: str
    """A pattern of the batch's page."""
    status: str
    """A pattern of what `rolloutpool status` prints."""
    metric: str
    """The name of the metric that tells."""
    labels: dict[str, str]
    """Of the series; `URL` stands for the trainer's address."""
    least: float = 1
    """By how much it has risen then; for a gauge, which was 0, its value."""
    further: Callable[[Page], None] | None = None
    """Goes on from the batch's page to what proves it; raises a time-out of Playwright if it is not there."""


def _proof(page: Page) -> None:
    page.locator("#row-0").click()
    page.get_by_role("link", name="proof").click()
    page.get_by_text(re.compile("They part at position")).first.wait_for()
    page.get_by_text(re.compile("forked: an echo disagreed")).wait_for()


def _exact(page: Page) -> None:
    page.locator("#row-0").click()
    page.get_by_role("link", name="proof").click()
    page.get_by_text(re.compile("exact: every echo agreed")).wait_for()


CHANGED = "(assistant_text_changed|tool_call_reserialised)"
"""The labels of a turn that has another text; the second one where the other text is in a call."""
CAUSES = (
    Cause(
        Manner.DOWN,
        pool=r"trainer is down URL",
        viewer=r"Waits for trainer_port URL.*\d+ calls in a row got no connection",
        status=r"waits for URL.*no connection",
        metric="rolloutpool_model_calls_total",
        labels={"endpoint": "URL", "outcome": "refused"},
    ),
    Cause(
        Manner.SLOW,
        pool=r"a trainer is slow URL",
        viewer=r"Waits for trainer URL.*no answer for more than \d+ s",
        status=r"waits for URL.*no answer for more than \d+ s \(\d+ rollouts?\)",
        metric="rolloutpool_turns_in_flight",
        labels={"phase": "model"},
        least=8,
    ),
    Cause(
        Manner.BUSY,
        pool=rf"a trainer answers 503 URL.*{REASON}",
        viewer=rf"Waits for trainer URL.*503.*{REASON}",
        status=rf"waits for URL.*503.*{REASON}",
        metric="rolloutpool_model_calls_total",
        labels={"endpoint": "URL", "outcome": "5xx"},
    ),
    Cause(
        Manner.LYING,
        pool=rf"16 rollouts were split: the trainer's prompts were other ones.*{CHANGED}",
        viewer=rf"≠ {CHANGED}",
        status=rf"alignment +forked 16[\s\S]*drift +{CHANGED} \d+",
        metric="rolloutpool_drifted_turns_total",
        labels={},
        least=16,
        further=_proof,
    ),
    Cause(
        Manner.UNEQUAL,
        pool=r"1 batch failed whole.*trainer_protocol_error: .*URL.*log",
        viewer=r"16 rollouts: trainer_protocol_error: .*URL.*log",
        status=r"because +trainer_protocol_error: .*URL.*logprobs.*16 rollouts",
        metric="rolloutpool_rollout_failures_total",
        labels={"kind": "infra", "category": "trainer_protocol_error"},
        least=16,
    ),
    Cause(
        Manner.TEMPLATE,
        pool=rf"1 batch failed whole.*trainer_client_error: .*URL.*400.*{TEMPLATE_REASON}",
        viewer=rf"16 rollouts: trainer_client_error: .*URL.*400.*{TEMPLATE_REASON}",
        status=rf"because +trainer_client_error: .*URL.*400.*{TEMPLATE_REASON}.*16 rollouts",
        metric="rolloutpool_model_calls_total",
        labels={"endpoint": "URL", "outcome": "4xx"},
        least=16,
    ),
    Cause(
        Manner.RIGHT,
        pool=None,
        viewer=r"✓ completed 16",
        status=r"completed 16[\s\S]*alignment +exact 16[\s\S]*drift +none[\s\S]*failures +none",
        metric="rolloutpool_rollouts_ended_total",
        labels={"status": "completed"},
        least=16,
        further=_exact,
    ),
)


def told(pool: OperatedPool, cause: Cause, url: str) -> float:
    """The value of a cause's metric now."""
    return pool.metric(cause.metric, **{name: url if text == "URL" else text for name, text in cause.labels.items()})
