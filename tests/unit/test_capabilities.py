"""The composition roots: each capability has the same name everywhere, and what it adds is there."""

import importlib
from pathlib import Path

import pytest

import rolloutpool_trainer
import rolloutpool_trainer.cli
from rolloutpool_api import composition as api
from rolloutpool_common import capabilities
from rolloutpool_common import composition as common
from rolloutpool_common.capability import StoredCapability
from rolloutpool_common.store.connection import source_of, sources_of
from rolloutpool_trainer import composition as trainer
from rolloutpool_worker import composition as worker

ROOT = Path(__file__).parents[2]
NAMES = [capability.name for capability in common.CAPABILITIES]
KEPT = [capability.name for capability in common.CAPABILITIES if capability.mark]
FOLDERS = [folder for folder in Path(capabilities.__path__[0]).iterdir() if folder.is_dir() and folder.name[0] != "_"]


def keeps_something(folder: Path) -> bool:
    """Whether it has keys or scripts, or says what it keeps in Redis."""
    says = any("(StoredCapability)" in path.read_text() for path in folder.glob("*.py"))
    return says or (folder / "keys.py").exists() or (folder / "scripts").exists()


def test_each_folder_that_keeps_something_is_in_the_tuple_and_the_worker_has_the_same_order() -> None:
    assert set(NAMES) == {folder.name for folder in FOLDERS if keeps_something(folder)}
    hooked = [capability.name for capability in worker.CAPABILITIES]
    assert [name for name in hooked if name in NAMES] == [name for name in NAMES if name in hooked]
    assert {kind.kind for one in common.CAPABILITIES if (kind := one.plugins) is not None} == set(worker.PLUGINS)


def test_marks_are_fields_of_their_own() -> None:
    marks = [capability.mark for capability in common.CAPABILITIES if capability.mark]
    assert len(set(marks)) == len(marks)


@pytest.mark.parametrize("script", ["claim", "finish", "cancel"])
def test_a_script_about_a_batch_has_the_lines_of_what_the_batch_uses_and_no_others(script: str) -> None:
    plain, *others = sources_of(script)
    assert len(others) == 2 ** len(KEPT) - 1
    assert plain == source_of(script)
    for name in KEPT:
        assert f"{name}_on_" not in plain
        for other in KEPT:
            assert other == name or f"{other}_on_" not in source_of(script, f" {name}")


def test_what_the_pool_asks_of_redis_has_all_of_them() -> None:
    lua = "".join(path.read_text() for path in Path(capabilities.__path__[0]).rglob("_*.lua"))
    at_once = [(script, f"on_{script}") for script in ("beat", "lead", "commit", "release")]
    for script, hook in (*at_once, ("strays", "on_held"), ("journal", "on_record"), ("grade", "on_stage")):
        for name in NAMES:
            assert (f"{name}_{hook}(" in source_of(script)) is (f"local function {name}_{hook}(" in lua)


def test_a_hook_that_is_not_used_does_nothing() -> None:
    class Other(StoredCapability):
        name = "other"

    other = Other()
    assert (other.asked(None, []), other.state({}), other.waiting(1)) == (None, {}, None)
    assert common.asks_of(None, [{}]) == {}


def test_names_that_capabilities_add_can_be_imported_from_the_trainers_package() -> None:
    assert sorted(trainer.__all__) == sorted(trainer.HOMES)
    for name in trainer.HOMES:
        assert getattr(rolloutpool_trainer, name).__name__ == name
    for place in (*trainer.COMMANDS, *trainer.DOCUMENTS.values()):
        assert trainer.by_place(place).__name__ == place.partition(":")[2]


def test_each_route_of_a_capability_is_in_the_application() -> None:
    assert all(router.routes for router in api.routers())


def test_what_has_moved_can_be_imported_where_it_was() -> None:
    moved = [path for path in ROOT.glob("*/src/**/*.py") if path.read_text().startswith('"""Moved to ')]
    for path in moved:
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts[2:]))
        with pytest.raises(AttributeError):
            _ = module.nothing


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("rolloutpool_common.protocol.annotations", ["AnnotationRequest", "GroupStatistics"]),
        (
            "rolloutpool_common.protocol.attachments",
            ["AttachedPiece", "AttachmentKind", "AttachmentLack", "AttachmentsReport", "RolloutAttachments"],
        ),
        ("rolloutpool_common.protocol.fork", ["ForkRequest"]),
        ("rolloutpool_common.protocol.grading", ["GraderChoice"]),
        ("rolloutpool_common.protocol.osmosis.request", ["OsmosisRequest", "Wire"]),
        ("rolloutpool_common.protocol.osmosis.response", ["OsmosisResult"]),
        ("rolloutpool_common.protocol.overview", ["PoolOverview", "Trouble"]),
        ("rolloutpool_common.protocol.replay", ["ForkOrigin"]),
        ("rolloutpool_common.protocol.regrading", ["Regrade", "RegradeRequest"]),
        (
            "rolloutpool_common.protocol.runs",
            ["OnStale", "PolicyVersionRequest", "RunState", "StaleEnd", "StaleVersions"],
        ),
        ("rolloutpool_common.protocol.push", ["PushEvent", "PushesRetried", "verify"]),
        ("rolloutpool_trainer.client.webhook", ["SignatureInvalid", "verify_push"]),
        ("rolloutpool_worker.graders", ["GRADERS"]),
    ],
)
def test_names_that_moved_are_found_where_they_were(place: str, names: list[str]) -> None:
    module = importlib.import_module(place)
    assert all(hasattr(module, name) for name in names)
    assert not hasattr(module, "nothing")
