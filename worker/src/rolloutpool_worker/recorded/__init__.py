"""A rollout that is run from its record: neither model, tools nor environment are asked for what is in it.

- `script` reads a result: for each turn, what was sampled after which prompt, and what the tools and the environment
  answered.
- `callback`, `tools` and `session` take the places of the real ones, and answer from a script. Where it has nothing,
  they go on to the real ones, or end the replay.
"""

from rolloutpool_worker.recorded.callback import RecordedCallback
from rolloutpool_worker.recorded.script import RecordEnds, RecordLacks, RecordMismatch, Script
from rolloutpool_worker.recorded.session import RecordedSession
from rolloutpool_worker.recorded.tools import RecordedTools

__all__ = [
    "RecordEnds",
    "RecordLacks",
    "RecordMismatch",
    "RecordedCallback",
    "RecordedSession",
    "RecordedTools",
    "Script",
]
