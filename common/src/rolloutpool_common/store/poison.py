"""Says what the failure of a poisonous rollout says, so that its author finds the cause.

Its isolated workers are dead and can say nothing. Two things are known: how they ended, as their parents saw it
(`ProcessEnd`; the deaths without company, `release.lua`), and how far the journal got. What comes after the last record
is what the rollout did when they died:

| last record | what it did then |
|---|---|
| a turn with calls | it ran these tools |
| a turn without calls | its agent decided how to go on |
| an observation or an edit, or none | it asked its policy for a turn |
| no journal: its conversation is complete | it was graded |

Example: "2 isolated workers died (signal:11) while they ran tools ['native_crash'] of turn 3". Tools are named, their
arguments are not: they may hold what a failure must not quote.
"""

from collections.abc import Sequence

from rolloutpool_common.errors import PoisonRollout
from rolloutpool_common.protocol.journal import JournalRecord, TurnRecord

MOST_TOOLS = 8
"""Tools that are named; more would hide the sentence."""
LONGEST_NAME = 64
"""Characters of a tool's name. The policy chose it, and it need not be the name of a tool."""


def explain_poison(deaths: int, ends: Sequence[str], records: Sequence[JournalRecord] | None) -> PoisonRollout:
    """Makes the error of a rollout that killed its workers."""
    ways = sorted(set(ends) - {"unknown"})
    how = f" ({', '.join(ways)})" if ways else ""
    who = f"{len(ends)} isolated workers" if ends else f"{deaths} workers"
    return PoisonRollout(
        f"{who} died{how} while they {_doing(records)}; look into the workers' logs before resubmitting"
    )


def _doing(records: Sequence[JournalRecord] | None) -> str:
    if records is None:
        return "graded this rollout"
    turns = sum(isinstance(record, TurnRecord) for record in records)
    last = records[-1] if records else None
    if not isinstance(last, TurnRecord):
        return f"ran this rollout, which asked its policy for turn {turns + 1}"
    names = list(
        dict.fromkeys(call["function"]["name"][:LONGEST_NAME] for call in last.message.get("tool_calls") or ())
    )
    if not names:
        return f"ran this rollout, after turn {turns}"
    more = f" and {len(names) - MOST_TOOLS} more" if len(names) > MOST_TOOLS else ""
    return f"ran tools {names[:MOST_TOOLS]}{more} of turn {turns}"
