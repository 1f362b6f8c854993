"""A part that blocks. Generated from `aio_batch.py` by `make generate`; edit that file, not this one."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolloutpool_common.capabilities.harness.wire import HarnessSession
    from rolloutpool_trainer.client.doors import SyncDoor


class SyncHarnessBatch:
    """Holds what sessions of harnesses add to a batch."""

    batch_id: str
    _client: "SyncDoor"

    def session(self, index: int = 0) -> "HarnessSession":
        """Asks where the program that leads a rollout finds its model.

        Args:
            index: The rollout's place in the batch.

        Returns:
            `url` for the program's SDK (OpenAI's SDKs want `/v1` behind it), and its `key`.

        Raises:
            NotFound: The rollout is unknown, or has no harness.
        """
        from rolloutpool_trainer.capabilities.harness import calls

        return self._client.ask(calls.session(f"{self.batch_id}-{index}"))

    def end_session(
        self,
        index: int = 0,
        *,
        reward: float | None = None,
        reward_parts: Mapping[str, float] | None = None,
        failed: str | None = None,
    ) -> "HarnessSession":
        """Ends the session of a rollout: it takes no further calls, and its result is made.

        Args:
            index: The rollout's place in the batch.
            reward: What the rollout is worth; None where that is not known, or a grader says it.
            reward_parts: What the reward is made of.
            failed: Why the program is given up: the rollout fails as `infra`, and is no sample with a reward of 0.

        Raises:
            NotFound: The rollout is unknown, or has no harness.
            RequestRefused: The session has ended otherwise already.
        """
        from rolloutpool_common.capabilities.harness.wire import SessionEnd
        from rolloutpool_trainer.capabilities.harness import calls

        how = SessionEnd(reward=reward, reward_parts=dict(reward_parts or {}), failed=failed)
        return self._client.ask(calls.end_session(f"{self.batch_id}-{index}", how))
