"""The failure of a poisonous rollout names how its processes ended and which tools ran, and quotes nothing."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.batches import announce, claim, submit, view_of
from tests.support.journals import observation_record, turn_record

from rolloutpool_common.outcomes import Category
from rolloutpool_common.protocol.journal import TurnRecord
from rolloutpool_common.protocol.process_end import ProcessEnd
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import Store
from rolloutpool_common.store.poison import explain_poison


def calls(*names: str) -> TurnRecord:
    """A turn in which the policy called these tools, with a secret for an argument."""
    record = turn_record(1)
    called = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": '{"key": "secret"}'}}
        for i, name in enumerate(names)
    ]
    return replace(record, message={**record.message, "tool_calls": called})


ASKED = "ran this rollout, which asked its policy for turn"


@pytest.mark.parametrize(
    ("deaths", "ends", "records", "who", "doing"),
    [
        (4, "signal:11 signal:11", [calls("a")], "2 isolated workers died (signal:11)", "ran tools ['a'] of turn 1"),
        (4, "oom exit:9", [calls(*"aba")], "2 isolated workers died (exit:9, oom)", "ran tools ['a', 'b'] of turn 1"),
        (4, "unknown unknown", [], "2 isolated workers died", f"{ASKED} 1"),
        (4, "unknown oom", [turn_record(1)], "2 isolated workers died (oom)", "ran this rollout, after turn 1"),
        (4, "", [turn_record(1), observation_record(1)], "4 workers died", f"{ASKED} 2"),
    ],
)  # fmt: skip
def test_it_says_how_they_ended_and_what_ran(deaths: int, ends: str, records: list[Any], who: str, doing: str) -> None:
    failure = explain_poison(deaths, ends.split(), records).failure()
    assert failure.category is Category.POISON
    assert failure.message == f"{who} while they {doing}; look into the workers' logs before resubmitting"


def test_it_is_short_whatever_the_policy_called() -> None:
    message = explain_poison(4, ["oom"] * 2, [calls(*(f"{i:03}" * 5000 for i in range(100)))]).message
    assert len(message) < 1000
    assert "and 92 more" in message


async def test_the_result_of_a_poisonous_rollout_says_it(store: Store) -> None:
    (uid,) = await submit(store)
    await announce(store, "first")
    claimed = await claim(store, uid, "first")
    await store.rollouts.journal(claimed, [calls("native_crash")], turns=1)
    ended = ProcessEnd.of(-11)
    for worker in ("first", "second"):
        if worker == "second":
            await claim(store, uid, worker)
        await store.workers.report_end(worker, ended)
        await store.reconciliation.take_back(uid, worker)
    for worker in ("third", "fourth"):
        await claim(store, uid, worker, WorkerRole.ISOLATED)
        await store.workers.report_end(worker, ended)
        await store.reconciliation.take_back(uid, worker)
    view = await view_of(store, uid)
    assert view.result is not None
    assert view.result["failure"]["message"].startswith(
        "2 isolated workers died (signal:11) while they ran tools ['native_crash'] of turn 1"
    )
