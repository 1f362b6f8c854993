"""What an environment says of each turn, for advantages of turns (`advantages.turn_advantages`)."""

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_rl.errors import ExportRefused


def turn_rewards(result: RolloutResult) -> list[float | None]:
    """Adds up the rewards of the steps that followed each turn.

    The reward of the whole rollout is not among them. Add it to the last turn if the environment's steps are without.

    Args:
        result: Of a rollout in an environment.

    Returns:
        [T], one for each of its `turns`; None where no step of the turn has a reward.

    Raises:
        ExportRefused: It had no environment, or its result is of a version that says no turns of steps.
    """
    report = result.environment
    if report is None or len(report.step_turns) != len(report.step_rewards):
        raise ExportRefused(f"The result of rollout {result.rollout_id} says nothing of its environment's steps.")
    found: dict[int, float | None] = {summary.turn: None for summary in result.turns}
    for turn, reward in zip(report.step_turns, report.step_rewards, strict=True):
        if reward is not None:
            found[turn] = (found.get(turn) or 0.0) + reward
    return list(found.values())
