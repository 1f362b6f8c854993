"""Groups that are sampled again: which of their rollouts run once more, and what becomes of the group then."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_trainer.client.groups import Drop, GroupUse, SelectedGroup, select
from rolloutpool_trainer.client.results import FinishedRollout
from rolloutpool_trainer.client.submission import Submission
from rolloutpool_trainer.errors import RefillImpossible


@dataclass(frozen=True, slots=True)
class GroupSampling:
    """A group as it was sampled, for the first time or again."""

    first: tuple[FinishedRollout, ...]
    """All its rollouts of the batch itself."""
    group: SelectedGroup
    """What of it can be trained now."""
    submission: Submission | None
    """That of the rollouts which were sampled last."""
    attempt: int = 0
    """How often it was sampled again."""

    def refill(self, verdict: GroupUse, whole: Submission | None, most: int) -> "GroupRefill | None":
        """Says what of it runs again, where that may mend it and it was done less than `most` times.

        Args:
            verdict: On the group.
            whole: The submission of the batch itself; None where that is not known here.
            most: How often a group may be sampled again.

        Raises:
            RefillImpossible: The submission is not known.
        """
        group, submission, again = self.group, self.submission, self.group.refillable
        if verdict is GroupUse.REFUSED:
            # Their indexes are those of the batch itself, whatever ran again since.
            submission, again = whole, self.first
            dropped = dict(Counter(group.dropped) + Counter({verdict: len(group.rollouts)}))
            group = replace(group, rollouts=(), dropped=dropped)
        # Where the caller has cancelled the batch, nobody wants others.
        ended = verdict is GroupUse.USABLE or RolloutStatus.CANCELLED in group.dropped
        if ended or not again or self.attempt >= most:
            return None
        if submission is None:
            raise RefillImpossible()
        before = replace(self, group=group, submission=submission, attempt=self.attempt + 1)
        return GroupRefill(before, again, submission.again(again))


@dataclass(frozen=True, slots=True)
class GroupRefill:
    """Rollouts of a group that run again."""

    before: GroupSampling
    """Its `group` has what stays of it."""
    rollouts: tuple[FinishedRollout, ...]
    """As they ended before."""
    submission: Submission
    """By which they run again."""

    def key(self, batch_id: str) -> str:
        """Makes its idempotency key, of the first batch: a trainer that starts again does not run it twice."""
        uids = "\n".join(rollout.uid for rollout in self.rollouts)
        digest = hashlib.blake2b(uids.encode(), digest_size=12).hexdigest()
        return f"refill/{batch_id}/{self.before.attempt}/{digest}"

    def ended(self, results: Sequence[FinishedRollout], drop: Drop | None) -> GroupSampling:
        """Puts what has run again to what stays of the group."""
        kept = self.before.group
        group = select([*kept.rollouts, *results], drop)
        # What failed before its repetition was left out too; and a rollout without a group has a new index now.
        dropped = dict(Counter(kept.dropped) + Counter(group.dropped))
        group = replace(group, name=kept.name, dropped=dropped)
        return replace(self.before, group=group, submission=self.submission)
