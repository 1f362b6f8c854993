"""How graders are declared: where they run follows from the function."""

import pytest
from tests.support import graders

from rolloutpool_worker.graders import GRADERS, grader
from rolloutpool_worker.plugins import NameTaken, PluginBroken
from rolloutpool_worker.tools import Isolated


def test_plain_functions_run_in_child_processes_and_async_ones_on_the_loop() -> None:
    assert graders.isolated_returns.isolated == Isolated()
    assert graders.spins.isolated == Isolated(memory_mb=256)
    assert graders.returns.isolated is None
    assert GRADERS.get("ranks") is graders.ranks
    assert graders.ranks.of_groups


def test_a_plain_function_that_no_child_process_could_find_is_refused() -> None:
    def inside(rollout: object, options: object) -> float:
        return 1.0

    with pytest.raises(PluginBroken, match="grader inside"):
        grader()(inside)
    assert GRADERS.get("inside") is None


def test_two_graders_of_one_name_are_refused() -> None:
    async def other(rollout: object, options: object) -> float:
        return 1.0

    with pytest.raises(NameTaken):
        grader("returns")(other)


def test_a_grader_of_other_arguments_is_refused_when_it_is_declared() -> None:
    async def alone(rollout: object) -> float:
        return 1.0

    with pytest.raises(PluginBroken, match=r"grader alone: it is called as `\(rollout, options\)`: too many"):
        grader()(alone)  # type: ignore[arg-type]
    assert GRADERS.get("alone") is None


def test_a_decorator_without_brackets_is_refused() -> None:
    """It would register nothing, and nothing would say so."""

    async def bare(rollout: object, options: object) -> float:
        return 1.0

    with pytest.raises(PluginBroken, match=r"grader bare: write `@grader\(\)`, with brackets"):
        grader(bare)  # type: ignore[arg-type]
