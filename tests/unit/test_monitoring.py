"""Alerts, rules and the dashboard name metrics that exist, and each alert has its case and its line in the document.

`make test-monitoring` asks a real Prometheus (tests/acceptance/test_monitoring.py).
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rolloutpool_api.metrics import families
from rolloutpool_common.process.metrics import counted, histograms
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.workers import Queue
from rolloutpool_common.store import PoolStats
from rolloutpool_common.store.measures import Measured, RedisFacts

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
DOCUMENT = (ROOT / "docs" / "operations.md").read_text()


def rules_of(name: str) -> list[dict[str, Any]]:
    document = yaml.safe_load((FOLDER / name).read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


RULES, ALERTS = rules_of("rules.yml"), rules_of("alerts.yml")
CASES = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())


ON_NO_PANEL = {
    "rolloutpool_places_held": "It is 0 in pools without runners, whose own machines are watched for their load.",
    "rolloutpool_places_wanted": "It is 0 in pools without runners; where it stays above, start more of them.",
    "rolloutpool_gc_collections_total": "It explains CPU time to those who look into one process; CPU is shown.",
}
"""Metrics that the dashboard leaves out, and why."""


def existing() -> set[str]:
    """The samples that a pool has in which everything has happened once."""
    sums = {
        "": {f"{metric.name}|{'a|' * len(metric.labels)}0": 1 for metric in histograms()}
        | {"|".join([metric.name, *"a" * len(metric.labels)]): 1 for metric in counted()},
        "http://t": {"model_call_seconds|ok|0": 1},
    }
    standing = {"component": "api", "version": "1", "resident_bytes": 1, "open_fds": 1, "levels": {}}
    stats = PoolStats({"drift:a": 1, "warning:a": 1}, 0, 0, 0, dict.fromkeys(Priority, 0.0))
    depths = dict.fromkeys(Priority, Queue(outbox=0, published=0))
    pool = families(stats, depths, [], Measured(sums, [standing], RedisFacts(1, 2, 3), True))
    return {sample.name for family in pool for sample in family.samples}


def named(expressions: list[str]) -> set[str]:
    return {name for expr in expressions for name in re.findall(r"\brolloutpool[_:][\w:]+", expr)}


def asked() -> list[str]:
    """The expressions of the dashboard."""
    return [target["expr"] for panel in panels(DASHBOARD["panels"]) for target in panel.get("targets", ())]


def panels(found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in found:
        yield panel
        yield from panels(panel.get("panels", []))


def test_every_metric_that_is_asked_for_exists() -> None:
    known = existing() | {rule["record"] for rule in RULES}
    expressions = [*asked(), *(rule["expr"] for rule in RULES + ALERTS)]
    assert len(expressions) > 60
    assert named(expressions) - known == set()


def test_every_metric_is_on_a_panel_but_for_those_that_are_left_out() -> None:
    def metric(sample: str) -> str:
        """A histogram is shown by any of its series, and counts its calls."""
        return re.sub(r"_(bucket|count|sum)$", "", sample)

    shown = {metric(name) for name in named(asked())}
    assert {metric(name) for name in existing()} - shown == set(ON_NO_PANEL)


def test_every_alert_has_a_case_that_fires_and_is_quiet_for_a_pool_that_works() -> None:
    names = [rule["alert"] for rule in ALERTS]
    assert len(names) == len(set(names)) >= 18
    quiet, *firing = CASES
    assert [case["alertname"] for case in quiet["alert_rule_test"]] == names
    assert not any(case.get("exp_alerts") for case in quiet["alert_rule_test"])
    assert [case["name"] for case in firing] == names
    assert all(case["alert_rule_test"][0]["exp_alerts"] for case in firing)


def test_every_alert_says_what_to_do_and_is_documented() -> None:
    for rule in ALERTS:
        path, _, fragment = rule["annotations"]["runbook_url"].partition("#")
        assert (ROOT / path).is_file()
        assert fragment == "what-to-alert-on"
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert f"`{rule['alert']}`" in DOCUMENT, rule["alert"]


def test_every_panel_asks_its_own_data_source_and_has_room() -> None:
    charts = [panel for panel in panels(DASHBOARD["panels"]) if panel["type"] != "row"]
    assert len(charts) > 30
    for panel in charts:
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert panel["description"], panel["title"]
        assert panel["gridPos"]["w"] >= 6
    assert [panel["title"] for panel in panels(DASHBOARD["panels"]) if panel["type"] == "row"] == [
        "Is it healthy?",
        "Is it fast?",
        "Are the weights fresh?",
        "Do environments and graders answer?",
        "Can the tokens be trusted?",
        "The machine",
    ]
