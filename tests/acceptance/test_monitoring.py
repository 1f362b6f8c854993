"""A real Prometheus scrapes a pool, and answers every rule, alert and panel. `make test-monitoring` runs it."""

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.support.served_policy import ServedPolicy
from tests.support.waiting import eventually

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import TINY
from rolloutpool_trainer import LocalPool, RolloutClient

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
BIN = ROOT / "build" / "monitoring" / "bin"
PROMTOOL = BIN / "promtool"

pytestmark = pytest.mark.skipif(not PROMTOOL.exists(), reason="make test-monitoring fetches Prometheus")

NOTHING = {
    "Drifted turns": "no turn drifted",
    "Warnings": "no rollout had one",
    "API errors": "no request was refused",
    "Redis memory": "the embedded Redis has no limit",
}
"""Panels that are empty for a pool where nothing is wrong: their series appear with their first event."""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPool]:
    """A pool with an environment and a grader; the other one has neither."""
    env = {
        "ROLLOUTPOOL_PLUGINS": "examples.text_game,tests.support.graders",
        "PYTHONPATH": str(ROOT),
        "GRADER_LOG": str(tmp_path_factory.mktemp("graders") / "log"),
    }
    with LocalPool(workers=2, tokenizers=[TINY], env=env) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(pool: LocalPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """It scrapes the pool each second, with the rules and alerts as they are shipped."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(FOLDER / name) for name in config["rule_files"]]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [pool.url.removeprefix("http://")]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    files: list[str | Path] = [
        BIN / "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*files, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:

            def ready() -> bool:
                assert process.poll() is None, (folder / "log").read_text()
                try:
                    return client.get("/-/ready").status_code == 200
                except httpx.ConnectError:
                    return False

            eventually(ready, seconds=30)
            yield client
    finally:
        process.terminate()
        process.wait(20)


def ask(prometheus: httpx.Client, path: str, **query: str) -> Any:
    answer = prometheus.get(f"/api/v1/{path}", params=query).json()
    assert answer["status"] == "success", (query, answer)
    return answer["data"]


@pytest.fixture(scope="module")
def worked(pool: LocalPool, prometheus: httpx.Client, tokenizer: Any) -> None:
    """The pool has run rollouts with tools, in groups, while it was scraped, and each scrape was taken."""
    from rolloutpool_trainer import callback_app
    from rolloutpool_trainer.endpoint.server import serve_callback
    from rolloutpool_trainer.testing import ScriptedPolicy

    app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, tools=pool.url)
    with serve_callback(app, [0]) as served, pool.client() as client:
        policy = ServedPolicy(app, list(served.urls))
        end = time.monotonic() + 15
        while time.monotonic() < end:
            run(client, policy)
    # A report, a scrape and an evaluation later it is all there.
    time.sleep(8)


def run(client: RolloutClient, policy: ServedPolicy) -> None:
    items: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": f"Calculate 15 + {i}"}], "group": f"g{i % 4}"} for i in range(14)
    ]
    items[0] |= {"grader": {"name": "returns", "options": "a number"}, "group": "graded"}
    game = {"name": "guess", "task": {"most": 100}, "seed": 1}
    items += [{"messages": [{"role": "user", "content": "Calculate 15 + 23"}], "environment": game, "max_turns": 3}] * 2
    handle = client.submit(items, trainer=policy.urls[0], defaults={"tokenizer_name": TINY}, run="monitored")
    assert {result.status for result in handle.results()} == {RolloutStatus.COMPLETED}


def test_the_files_are_right() -> None:
    commands: list[list[str | Path]] = [
        ["check", "config", FOLDER / "prometheus.yml"],
        ["check", "rules", FOLDER / "rules.yml", FOLDER / "alerts.yml"],
        ["test", "rules", FOLDER / "alerts_test.yml"],
    ]
    for command in commands:
        done = subprocess.run([PROMTOOL, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("worked")
def test_the_metrics_are_right(pool: LocalPool) -> None:
    text = httpx.get(f"{pool.url}/metrics", trust_env=False).text
    checked = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.usefixtures("worked")
def test_the_pool_is_scraped_and_no_rule_fails(prometheus: httpx.Client) -> None:
    (target,) = ask(prometheus, "targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    rules = [rule for group in ask(prometheus, "rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 25
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
    # A pool where nothing is wrong alarms nobody.
    assert [rule["name"] for rule in rules if rule["type"] == "alerting" and rule["state"] == "firing"] == []


@pytest.mark.usefixtures("worked")
def test_each_recording_rule_has_a_value(prometheus: httpx.Client) -> None:
    document = yaml.safe_load((FOLDER / "rules.yml").read_text())
    empty = [
        rule["record"]
        for group in document["groups"]
        for rule in group["rules"]
        if not ask(prometheus, "query", query=rule["record"])["result"]
    ]
    # The embedded Redis has no limit of memory.
    assert empty == ["rolloutpool:redis_memory:ratio"]


@pytest.mark.usefixtures("worked")
def test_each_panel_shows_something(prometheus: httpx.Client) -> None:
    dashboard = json.loads((FOLDER / "grafana.json").read_text())
    charts = [panel for panel in walk(dashboard["panels"]) if panel["type"] != "row"]
    assert len(charts) > 30
    for panel in charts:
        for target in panel["targets"]:
            expr = target["expr"].replace("$__rate_interval", "30s").replace("$job", "rolloutpool")
            found = ask(prometheus, "query", query=expr)["result"]
            if panel["title"] not in NOTHING:
                assert found, (panel["title"], expr)
            # Each line of a chart has a name of its own.
            labels = [json.dumps(series["metric"], sort_keys=True) for series in found]
            assert len(labels) == len(set(labels))
            for name in (part.partition("}}")[0] for part in target["legendFormat"].split("{{")[1:]):
                assert all(name in series["metric"] for series in found), (panel["title"], name, found)


@pytest.mark.usefixtures("worked")
def test_what_is_shown_is_what_happened(prometheus: httpx.Client) -> None:
    def value(expr: str) -> float:
        ((_, text),) = [series["value"] for series in ask(prometheus, "query", query=expr)["result"]]
        return float(text)

    ended = value('rolloutpool_rollouts_ended_total{status="completed"}')
    assert ended >= 16
    assert value("sum(rolloutpool_rollout_duration_seconds_count)") == ended
    assert value("sum(rolloutpool_rollout_queue_seconds_count)") == ended
    assert value("sum(rolloutpool_rollout_turns_count)") == ended
    turns = value("rolloutpool_turns_total")
    assert value("rolloutpool_rollout_turns_sum") == turns
    assert value('sum(rolloutpool_model_calls_total{outcome="ok"})') == turns
    assert value("sum(rolloutpool_tool_calls_total)") > 0
    # One of 16 is graded, and two have a session each.
    assert value('sum(rolloutpool_grader_calls_total{outcome="ok"})') == ended / 16
    asked = 'sum(rolloutpool_environment_calls_total{environment="guess",what="%s",outcome="ok"})'
    opened, called, scored = (value(asked % what) for what in ("open", "call", "score"))
    assert (opened, scored) == (ended / 8, ended / 8)
    assert 0 < called <= 3 * opened
    assert value('sum(rolloutpool_environment_calls_total{outcome!="ok"})') == 0
    assert value('rolloutpool_time_seconds_total{phase="model"}') > 0


def walk(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield panel
        yield from walk(panel.get("panels", []))
