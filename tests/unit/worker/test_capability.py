"""What a rollout owes to capabilities: a plain one nothing, and one that uses some their hooks, in order."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from tests.support.batches import submit
from tests.support.inside_worker import InsideWorker
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import call, say

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.store import Store
from rolloutpool_worker.capability import Ending, OpenCapability, Talk
from rolloutpool_worker.ending import Action, Decision, TicketOutcome
from rolloutpool_worker.rollout.talk import RolloutTalk

MOST_MEMBERS = 15


class Noting(OpenCapability):
    """Notes when it is asked, and lets a rollout go on as it is told."""

    def __init__(self, name: str, heard: list[str], decision: Decision | None = None) -> None:
        self._name, self._heard, self._decision = name, heard, decision

    async def at_end(self, talk: Talk, ending: Ending | None) -> Ending | None:
        self._heard.append(f"{self._name} at_end")
        return ending

    def decide(self, ending: Ending) -> Decision | None:
        self._heard.append(f"{self._name} decide")
        return self._decision

    async def close(self) -> None:
        self._heard.append(f"{self._name} close")


@contextmanager
def counted_calls(where: str) -> Iterator[list[str]]:
    """The files of the functions that are called in the block, of those whose path has this part."""
    called: list[str] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and where in frame.f_code.co_filename:
            called.append(frame.f_code.co_filename.rpartition("/src/")[2])

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield called
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def test_what_a_capability_sees_of_a_rollout_is_short() -> None:
    seen = {name for name in (*vars(Talk), *Talk.__annotations__) if not name.startswith("_")}
    assert seen == {
        *("claim", "store", "attachments", "running", "retry", "wait", "publish_soon", "delivered"),
    }
    assert len(seen) <= MOST_MEMBERS
    assert seen - {"claim", "store", "attachments"} == {name for name in vars(RolloutTalk) if not name.startswith("_")}


async def test_a_plain_rollout_makes_no_call_into_a_capability(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
) -> None:
    async with scripted_trainer(tokenizer, say("", calls=[call("add", {"a": 5, "b": 3})]), say("8")) as trainer:
        (uid,) = await submit(store, shared={"server_url": trainer.url})
        with counted_calls("/src/rolloutpool_") as called:
            assert await inside.take(uid) == "completed"
    assert "rolloutpool_worker/rollout/attempt.py" in called, "the count counts"
    assert [name for name in called if "/capabilities/" in name] == []
    assert len((await inside.result(uid)).turns) == 2


async def test_hooks_are_called_in_order_closed_in_reverse_and_the_strictest_answer_holds(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    again = Decision(Action.DEFER, TicketOutcome.DEFERRED, delay_s=10.0)
    first, second = Noting("first", heard, again), Noting("second", heard)
    async with scripted_trainer(tokenizer, say("8")) as trainer:
        (uid,) = await submit(store, shared={"server_url": trainer.url})
        with monkeypatch.context() as patched:
            patched.setattr(inside.services, "chosen", lambda spec: (first, second))
            # To finish is stricter than to go on later.
            assert await inside.take(uid) == "completed"
    assert heard == ["first at_end", "second at_end", "first decide", "second decide"]
    inside.services.capabilities |= {"first": first, "second": second}
    await inside.services.close()
    assert heard[4:] == ["second close", "first close"]


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("shared", [{}, {"grader": {"name": "returns", "options": "a number"}}])
async def test_a_stage_that_no_capability_here_knows_is_left_to_another_worker(
    inside: InsideWorker, store: Store, shared: dict[str, Any]
) -> None:
    (uid,) = await submit(store, shared=shared, asks={"grading": True} if shared else {})
    await store.connection.redis.hset(f"rp:rollout:{uid}", mapping={"status": "queued", "stage": "judging"})
    assert await inside.take(uid) == "deferred"
    view = await store.rollouts.view(uid, None)
    assert view is not None
    assert view.status is RolloutStatus.GRADING
