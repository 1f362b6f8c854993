"""Places: where an open rollout can be, and who does its next step there.

Each open rollout has exactly one owner of its next step. Without one it would be accepted and never end; with two it
would be sampled twice. This is the table of both rules. The store's state machine checks it after every step, and
`strays.py` looks for rollouts that are in no place while the pool runs.

| place | it is there when | its next step is done by |
|---|---|---|
| `running` | a listed worker holds its claim | that worker; if it dies, the reconciler |
| `suspects` | it may have killed its workers | the next isolated worker (`trials.py`) |
| `delayed` | it may run again at a time to come | the reconciler (`requeue.lua`) |
| `published` | its ticket is in the broker | the worker that gets it; if it was lost, `Outbox.lost` |
| `outbox` | one of its batch's outboxes has it, and batch and run stand in line | who reserves next (`reserve.lua`) |
| `held` | its conversation is complete, and its group's is not | the last of its group; or the reconciler, later |
| `cancelling` | its batch is being cancelled | who cancels; if that process dies, the reconciler |
| `overdue` | its deadline has passed | the reconciler |
| `precancelled` | it was cancelled before it was submitted | who submits it; if that process dies, the reconciler |

What may stand together:

1. Of `running`, `suspects`, `delayed`, `published` and `held` at most one.
2. `outbox` may stand beside each of them. It is then a second entry, from a ticket that was published twice, and is
   dropped when its turn comes (`reserve.lua`): who has the rollout puts it back if need be.
3. The last three end a rollout wherever it is, so they may stand beside all others, and alone.

A rollout that is graded is `running` or waits like any other. The leader of a group waits like any other as well, and
is not `held`.
"""

from collections.abc import Set
from enum import StrEnum


class Place(StrEnum):
    """Says where an open rollout is; the module's table says what each place means."""

    RUNNING = "running"
    SUSPECTS = "suspects"
    DELAYED = "delayed"
    PUBLISHED = "published"
    OUTBOX = "outbox"
    HELD = "held"
    CANCELLING = "cancelling"
    OVERDUE = "overdue"
    PRECANCELLED = "precancelled"


_ONE_OF = frozenset({Place.RUNNING, Place.SUSPECTS, Place.DELAYED, Place.PUBLISHED, Place.HELD})


def fault_in(places: Set[Place]) -> str | None:
    """Judges where one open rollout is."""
    if not places:
        return "it is nowhere: nobody would ever run or end it"
    owners = sorted(places & _ONE_OF)
    return f"it is in {' and '.join(owners)} at once" if len(owners) > 1 else None
