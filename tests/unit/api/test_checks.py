"""What a document is checked for beyond its models is seen rollout by rollout."""

from tests.support.api_documents import worker

from rolloutpool_api.checks import Catalog, NameCheck
from rolloutpool_common.protocol.workers import Worker


def test_a_catalog_holds_what_live_workers_announce() -> None:
    live = Worker.model_validate(worker(environments=["game"]))
    dead = Worker.model_validate(worker(alive=False, agents=["other"]))
    found = Catalog.of([live, dead])
    assert found == Catalog(
        frozenset({"add"}), frozenset({"tool_calls"}), frozenset({"task_completion"}), frozenset({"game"})
    )
    assert Catalog.of([dead]) is None


def test_values_of_a_wrong_type_are_left_to_the_models() -> None:
    check = NameCheck(Catalog(frozenset(), frozenset(), frozenset()))
    check.see_document({"defaults": 5})
    check.see_rollout(0, "x", None)
    check.see_rollout(1, {"agent": 5, "tools": "add", "metadata": []}, None)
    assert check.faults.total == 0
