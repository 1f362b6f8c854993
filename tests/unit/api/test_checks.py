"""What a document is checked for beyond its models is seen rollout by rollout."""

from tests.support.api_documents import worker

from rolloutpool_api.checks import Catalog, IdCheck, NameCheck, expanded_ids
from rolloutpool_common.protocol.batch import RolloutItem
from rolloutpool_common.protocol.workers import Worker


def test_a_catalog_holds_what_live_workers_announce() -> None:
    live = Worker.model_validate(worker(environments=["game"]))
    dead = Worker.model_validate(worker(alive=False, agents=["other"]))
    found = Catalog.of([live, dead])
    assert found == Catalog(
        frozenset({"add"}), frozenset({"tool_calls"}), frozenset({"task_completion"}), frozenset({"game"})
    )
    assert Catalog.of([dead]) is None


def test_ids_are_compared_over_all_rollouts() -> None:
    check = IdCheck()
    item = RolloutItem.model_validate({"messages": [{"role": "user"}], "rollout_id": "a", "n": 2})
    check.see_rollout(0, {"rollout_id": "a"}, item)
    check.see_rollout(1, {"rollout_id": "a-1"}, None)
    check.see_end()
    assert [fault.path for fault in check.faults.listed] == ["rollouts[1].rollout_id"]
    assert expanded_ids("a", 2) == ["a-0", "a-1"]


def test_values_of_a_wrong_type_are_left_to_the_models() -> None:
    check = NameCheck(Catalog(frozenset(), frozenset(), frozenset()))
    check.see_document({"defaults": 5})
    check.see_rollout(0, "x", None)
    check.see_rollout(1, {"agent": 5, "tools": "add", "metadata": []}, None)
    assert check.faults.total == 0


def test_an_environment_is_one_that_a_live_worker_has() -> None:
    check = NameCheck(Catalog(frozenset(), frozenset(), frozenset(), frozenset({"game"})))
    check.see_document({"defaults": {"environment": {"name": "chess"}}})
    check.see_rollout(0, {"environment": {"name": "game"}}, None)
    check.see_rollout(1, {"environment": None}, None)
    check.see_rollout(2, {"environment": "game"}, None)
    (fault,) = check.faults.listed
    assert fault.path == "defaults.environment.name"
    assert fault.message == "no live worker has the environment 'chess'; they have: game"
