"""Holds what gives a rollout its reward, besides an environment, where another wire has room for few options."""

from typing import Any

from pydantic import BaseModel


class RewardGiver(BaseModel):
    """The part of the pool's options on that wire that capabilities add to."""

    def gives_reward(self) -> bool:
        """Whether these options name something that gives a reward."""
        return False

    def within(self, seconds: float | None) -> dict[str, Any]:
        """Returns options of the batch API for one that is to be graded, within these seconds if it has any."""
        return {}
