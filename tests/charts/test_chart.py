"""The chart, rendered by Helm's own engine: `make test-chart`.

1. What it renders passes the schemas of three versions of Kubernetes, strictly, with everything on and off.
2. The rendered containers' commands, with their environment and nothing else, are a pool that passes `doctor`.
3. KEDA's query is asked of Prometheus' own engine (promtool), for pools in six states.
"""

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from scripts.render_chart import CHART, VERSIONS, Document, hold_to_kubernetes, main, render
from tests.support.ports import free_port
from tests.support.waiting import eventually

from rolloutpool_common.security.api_keys import KeyScope, make_key
from rolloutpool_trainer import RolloutClient, Unauthorized
from rolloutpool_trainer.local.redis_server import find_server

helm = pytest.importorskip("helm_python", reason="Helm's engine has an environment of its own: make test-chart")
pytest.importorskip("kubernetes_validate")

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
COMMAND = str(Path(sys.executable).parent / "rolloutpool")
PROMTOOL = ROOT / "build" / "monitoring" / "bin" / "promtool"
ALL = {
    "redisCa": True,
    "separateBroker": True,
    "settings": {"ROLLOUTPOOL_LOG_LEVEL": "DEBUG", "HF_HUB_OFFLINE": True, "ROLLOUTPOOL_MAX_OPEN": 2_000_000},
    "worker": {
        "settings": {"ROLLOUTPOOL_WORKER_SLOTS": 50, "ROLLOUTPOOL_LOG_LEVEL": "INFO"},
        "keda": {"enabled": True, "min": 0},
        "plugins": "my-plugins",
        "environments": True,
        "tokenizersClaim": "tokenizers",
    },
    "api": {"replicas": 1, "settings": {"ROLLOUTPOOL_DOOR_URL": "https://door.example"}},
    "image": {"registry": "images.example/team", "pullSecrets": [{"name": "pull"}]},
    "networkPolicy": {"callers": [{"matchLabels": {"team": "rl"}}], "operators": [{"matchLabels": {"team": "ops"}}]},
    "podLabels": {"cost": "research"},
    "nodeSelector": {"pool": "cpu"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
}
MOUNTED = "/run/secrets/rolloutpool"
ENVIRONMENT = """
[shop]
kind = "http"
url = "http://127.0.0.1:9/shop"
crash = "none"
"""
LEAST = {"door": {"enabled": False}, "flower": {"enabled": False}, "networkPolicy": {"enabled": False}}


def rendered(values: Document | None = None) -> dict[tuple[str, str], Document]:
    """Renders the chart; the documents by kind and by the end of their name."""
    documents, _ = render(values or {})
    return {(one["kind"], one["metadata"]["name"].removeprefix("pool-rolloutpool-")): one for one in documents}


def container(document: Document) -> Document:
    (found,) = document["spec"]["template"]["spec"]["containers"]
    return dict(found)


def variables(document: Document) -> dict[str, str]:
    """The environment of a pod's container; `key of the secret` where a value comes from there."""
    found = container(document)["env"]
    values = {
        one["name"]: one["value"] if "value" in one else f"<{one['valueFrom']['secretKeyRef']['key']}>" for one in found
    }
    # A server-side apply refuses a name that comes twice.
    assert len(values) == len(found)
    return values


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [{}, ALL, LEAST], ids=["default", "all", "least"])
def test_kubernetes_takes_what_is_rendered(values: Document, version: str) -> None:
    hold_to_kubernetes(rendered(values).values(), version)


def test_helm_finds_nothing_to_mend() -> None:
    report = helm.lint(CHART, strict=True)
    # A severity of 1 is an advice: it wants an icon.
    assert report["errors"] == []
    assert [one for one in report["messages"] if one["severity"] > 1] == []


def test_every_pod_has_few_rights_and_limits() -> None:
    deployments = [one for (kind, _), one in rendered(ALL).items() if kind == "Deployment"]
    assert len(deployments) == 4
    for document in deployments:
        pod, own = document["spec"]["template"]["spec"], container(document)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        assert own["securityContext"]["readOnlyRootFilesystem"] is True
        assert own["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in own["resources"]["limits"]
        assert own["image"].startswith("images.example/team/rolloutpool-")
        assert document["spec"]["template"]["metadata"]["labels"]["cost"] == "research"


def test_settings_of_a_role_go_before_those_of_all_and_unknown_ones_are_refused() -> None:
    documents = rendered(ALL)
    assert variables(documents["Deployment", "worker"])["ROLLOUTPOOL_LOG_LEVEL"] == "INFO"
    assert variables(documents["Deployment", "worker"])["ROLLOUTPOOL_WORKER_SLOTS"] == "50"
    assert variables(documents["Deployment", "worker"])["HF_HUB_OFFLINE"] == "true"
    assert variables(documents["Deployment", "api"])["ROLLOUTPOOL_LOG_LEVEL"] == "DEBUG"
    assert variables(documents["Deployment", "api"])["ROLLOUTPOOL_MAX_OPEN"] == "2000000"
    assert variables(documents["Deployment", "api"])["ROLLOUTPOOL_DOOR_URL"] == "https://door.example"
    for values in (
        {"settings": {"ROLLOUTPOOL_WORKER_SLOT": 50}},
        {"api": {"settings": {"ROLLOUTPOOL_WORKER_SLOTS": 50}}},
        {"settings": {"ROLLOUTPOOL_REDIS_URL": "redis://somewhere"}},
    ):
        with pytest.raises(helm.HelmError, match=r"propertyNames|ROLLOUTPOOL"):
            rendered(values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"replicas": 5}, "additional properties 'replicas'"),
        ({"worker": {"replica": 5}}, "additional properties 'replica'"),
        ({"worker": {"keda": {"rolloutPerPod": 5}}}, "additional properties 'rolloutPerPod'"),
        ({"worker": {"replicas": -1}}, "minimum"),
        ({"worker": {"keda": {"rolloutsPerPod": 0}}}, "minimum"),
        ({"settings": {"ROLLOUTPOOL_WORKER_SLOTS": 5000}}, "want 2,000"),
        ({"worker": {"settings": {"ROLLOUTPOOL_TOOL_TIMEOUT": 0}}}, "exclusiveMinimum"),
    ],
)
def test_values_that_the_chart_does_not_have_are_refused(values: Document, says: str) -> None:
    with pytest.raises(helm.HelmError, match=says):
        render(values)


def test_what_is_missing_is_said_after_an_install() -> None:
    notes = render({"secret": "rolloutpool"})[1]
    assert notes.count("WARNING") == 2
    assert "ROLLOUTPOOL_ALLOWED_TARGETS" in notes
    given = {"image": {"registry": "images.example"}, "settings": {"ROLLOUTPOOL_ALLOWED_TARGETS": "10.0.0.0/8"}}
    assert "WARNING" not in render(given)[1]


def test_the_example_of_the_page_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "operations.md").read_text().partition("\n## Kubernetes\n")[2]
    example = page.partition("```yaml\n")[2].partition("```")[0]
    file = tmp_path / "mine.yaml"
    file.write_text(example)
    assert main(str(file)) == 0
    assert yaml.safe_load(example)["settings"]["ROLLOUTPOOL_ALLOWED_TARGETS"] in capsys.readouterr().out
    file.write_text(example + "replicas: 5\n")
    assert main(str(file)) == 1
    assert "additional properties 'replicas'" in capsys.readouterr().err


def test_a_worker_has_longer_than_its_drain() -> None:
    document = rendered({"worker": {"drainSeconds": 20}})["Deployment", "worker"]
    assert variables(document)["ROLLOUTPOOL_DRAIN_SECONDS"] == "20"
    # Twenty, and half a minute that a worker has after it (docs/operations.md).
    assert document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 60


def test_nobody_reaches_workers_and_flower_is_for_operators() -> None:
    policies = {name: one["spec"] for (kind, name), one in rendered(ALL).items() if kind == "NetworkPolicy"}
    assert set(policies) == {"api", "door", "flower", "worker"}
    assert policies["worker"]["ingress"] == []
    selectors = [one.get("namespaceSelector") for one in policies["flower"]["ingress"][0]["from"]]
    assert selectors == [{"matchLabels": {"team": "ops"}}]
    blocked = [one["to"][0]["ipBlock"]["except"] for one in policies["worker"]["egress"]]
    assert blocked == [["169.254.0.0/16"], ["fe80::/10"]]


def test_keda_decides_the_number_of_workers_alone() -> None:
    documents = rendered(ALL)
    assert "replicas" not in documents["Deployment", "worker"]["spec"]
    assert documents["ScaledObject", "worker"]["spec"]["minReplicaCount"] == 0
    assert rendered()["Deployment", "worker"]["spec"]["replicas"] == 2


QUEUED = 'rolloutpool_rollouts_queued{job="rolloutpool",instance="%s",priority="%s",place="%s"}'
RUNNING = 'rolloutpool_rollouts_running{job="rolloutpool",instance="%s"}'
PAUSED = 'rolloutpool_turns_in_flight{job="rolloutpool",instance="%s",phase="%s"}'
STATES: dict[str, tuple[dict[str, int], int | None]] = {
    "nothing to do": ({QUEUED % ("a", "default", "outbox"): 0, RUNNING % "a": 0}, 0),
    "work and no worker yet": ({QUEUED % ("a", "default", "outbox"): 500, RUNNING % "a": 0}, 7),
    "busy, seen by two API processes": (
        {
            QUEUED % ("a", "high", "published"): 30,
            QUEUED % ("b", "high", "published"): 30,
            QUEUED % ("a", "default", "outbox"): 10,
            QUEUED % ("b", "default", "outbox"): 10,
            RUNNING % "a": 120,
            RUNNING % "b": 120,
            PAUSED % ("a", "model"): 118,
            PAUSED % ("b", "model"): 118,
        },
        2,
    ),
    "a trainer is down, and all wait for it": (
        {QUEUED % ("a", "default", "outbox"): 0, RUNNING % "a": 160, PAUSED % ("a", "pause"): 160},
        0,
    ),
    "one of two trainers is down": (
        {QUEUED % ("a", "default", "published"): 0, RUNNING % "a": 160, PAUSED % ("a", "pause"): 80},
        1,
    ),
    "Redis is away": ({'rolloutpool_redis_up{job="rolloutpool",instance="a"}': 0}, None),
}
"""What the API processes show, and how many pods are wanted; None where KEDA has to leave them as they are."""


@pytest.mark.skipif(not PROMTOOL.exists(), reason="make test-chart fetches Prometheus")
@pytest.mark.parametrize("state", STATES)
def test_keda_asks_for_pods_for_what_can_run(tmp_path: Path, state: str) -> None:
    shown, pods = STATES[state]
    trigger = rendered(ALL)["ScaledObject", "worker"]["spec"]["triggers"][0]["metadata"]
    assert trigger["ignoreNullValues"] == "false"
    wanted = 80
    assert int(trigger["threshold"]) == wanted
    (tmp_path / "rules.yml").write_text("groups: []\n")
    # Pods are what KEDA divides, rounded up; promtool has the division, and compares.
    asked = {"expr": f"ceil(({trigger['query']}) / {wanted})", "eval_time": "1m"}
    samples = [] if pods is None else [{"labels": "{}", "value": pods}]
    series = [{"series": name, "values": f"{value}x5"} for name, value in shown.items()]
    case = {"interval": "1m", "input_series": series, "promql_expr_test": [{**asked, "exp_samples": samples}]}
    text = yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [case]})
    (tmp_path / "test.yml").write_text(text)
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def running(command: list[str], env: Mapping[str, str], log: Path) -> Iterator[None]:
    """Runs a container's command with its environment, and nothing else."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, env={"PATH": os.environ["PATH"], **env}, stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def answers(url: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def answered(client: RolloutClient) -> bool:
    """Whether the API knows the client's key."""
    try:
        return bool(client.workers())
    except Unauthorized:
        return False


def test_the_rendered_commands_are_a_pool_that_passes_doctor(tmp_path: Path) -> None:
    ports = {name: free_port() for name in ("redis", "api", "door")}
    key, stored = make_key("chart", [KeyScope.ADMIN])
    made = subprocess.run([COMMAND, "make-secrets-key"], capture_output=True, text=True, check=True)
    mounted = {"secrets.keys": made.stdout, "api-keys": stored.entry(), "environments.toml": ENVIRONMENT}
    for name, text in mounted.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o440)
    given = {"<redis-url>": f"redis://127.0.0.1:{ports['redis']}/0"}
    documents = rendered({"settings": {"HF_HUB_OFFLINE": 1}, "door": {"replicas": 1}, "worker": {"environments": True}})
    # What a cluster decides, and one machine has to decide otherwise.
    placed = {
        "ROLLOUT_SERVER_PORT": str(ports["api"]),
        "ROLLOUTPOOL_DOOR_PORT": str(ports["door"]),
        "ROLLOUTPOOL_DOOR_URL": f"http://127.0.0.1:{ports['door']}",
        "HF_HOME": str(tmp_path),
    }
    with contextlib.ExitStack() as stack:
        redis = [find_server(), "--port", str(ports["redis"]), "--dir", str(tmp_path), "--appendonly", "yes"]
        redis += ["--appendfsync", "always", "--save", "", "--maxmemory", "1gb", "--maxmemory-policy", "noeviction"]
        stack.enter_context(running(redis, {}, tmp_path / "redis.log"))
        for role in ("api", "worker", "door"):
            document = documents["Deployment", role]
            env = {name: given.get(value, value) for name, value in variables(document).items()}
            volumes = {one["name"]: one for one in document["spec"]["template"]["spec"]["volumes"]}
            here = {
                f"{MOUNTED}/{item['path']}": str(tmp_path / item["key"])
                for item in volumes["secrets"]["secret"]["items"]
            }
            env = {name: here[value] if value.startswith(MOUNTED) else value for name, value in env.items()}
            env |= {name: value for name, value in placed.items() if name in env}
            command = [sys.executable, *container(document)["command"][1:]]
            stack.enter_context(running(command, env, tmp_path / f"{role}.log"))
            if role == "worker":
                health = [sys.executable, *container(document)["readinessProbe"]["exec"]["command"][1:]]
                worker_env = {"PATH": os.environ["PATH"], **env}
        answers(f"http://127.0.0.1:{ports['api']}/livez")
        answers(f"http://127.0.0.1:{ports['door']}/readyz")
        end = time.monotonic() + 60
        while (said := subprocess.run(health, env=worker_env, capture_output=True, text=True, check=False)).returncode:
            assert time.monotonic() < end, said.stdout + said.stderr
            time.sleep(0.5)
        env = {**os.environ, "ROLLOUTPOOL_API_KEY": key, "ROLLOUTPOOL_URL": f"http://127.0.0.1:{ports['api']}"}
        found = subprocess.run([COMMAND, "doctor"], env=env, capture_output=True, text=True, timeout=60, check=False)
        assert found.returncode == 0, found.stdout + found.stderr
        with RolloutClient(env["ROLLOUTPOOL_URL"], api_key=key) as client:
            assert [worker.environments for worker in client.workers()] == [["shop"]]
            # What the Secret has now holds, and nobody was started again.
            other, new = make_key("later", [KeyScope.ADMIN])
            (tmp_path / "new").write_text(new.entry())
            (tmp_path / "new").rename(tmp_path / "api-keys")
            with RolloutClient(env["ROLLOUTPOOL_URL"], api_key=other) as late:
                eventually(lambda: answered(late), seconds=30)
            with pytest.raises(Unauthorized):
                client.workers()
