"""A rollout that its worker cannot run as it was submitted goes back to the queue, and says what it lacks."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.claims import claim_of

from rolloutpool_common.protocol.environments import EnvironmentChoice
from rolloutpool_common.protocol.waiting import WaitsFor
from rolloutpool_worker.environments import EnvironmentFull
from rolloutpool_worker.policy import TrainerDown
from rolloutpool_worker.rollout.deferral import ToolsMissing, check_tools, note_deferral
from rolloutpool_worker.rollout.run_gate import RunPaused, WeightsStale


def spec_of(**changes: Any) -> Any:
    return claim_of().spec.model_copy(update=changes)


@pytest.mark.parametrize("tools", [None, [], ["add"], ["divide", "add"]])
def test_a_worker_with_all_of_the_tools_takes_the_rollout(tools: list[str] | None) -> None:
    check_tools(spec_of(tools=tools), "w1")


def test_a_missing_tool_is_named_and_a_thousand_long_ones_are_cut() -> None:
    with pytest.raises(ToolsMissing, match="worker w1 has no tool 'launch'; it has add, subtract, multiply, divide"):
        check_tools(spec_of(tools=["add", "launch"]), "w1")
    with pytest.raises(ToolsMissing) as caught:
        check_tools(spec_of(tools=[f"{n}{'x' * 1000}" for n in range(1000)]), "w1")
    assert len(caught.value.message) < 500


class Waits:
    """What would be noted."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    async def failed(self, error: Exception, tries: int, wait_s: float, *, port: bool = False) -> None:
        self.said.append((type(error), tries, wait_s, port))

    async def lacks(self, what: WaitsFor, message: str, wait_s: float) -> None:
        self.said.append((what, message, wait_s))


async def test_each_cause_is_noted_as_what_it_is() -> None:
    claim = replace(claim_of(), deferrals=4, spec=spec_of(environment=EnvironmentChoice(name="game")))
    waits = Waits()
    for cause in (TrainerDown("refused"), WeightsStale("old"), ToolsMissing("no tool"), EnvironmentFull("secret")):
        await note_deferral(waits, cause, claim, 10.0)  # type: ignore[arg-type]
    assert waits.said == [
        (TrainerDown, 5, 10.0, True),
        (WeightsStale, 1, 10.0, False),
        (WaitsFor.WORKER, "no tool", 10.0),
        (WaitsFor.ENVIRONMENT, "environment game has no room for another session", 10.0),
    ]


async def test_a_pause_says_so_itself() -> None:
    waits = Waits()
    await note_deferral(waits, RunPaused(), claim_of(), 0.0)  # type: ignore[arg-type]
    assert waits.said == []
