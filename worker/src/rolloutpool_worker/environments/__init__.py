"""Environments: tools that have state, with a session for each rollout.

- `base` says what an environment is and how to add one. Start here.
- `session` is the life of one rollout's session: opened, asked, scored, closed. `resume` brings a fresh one to where a
  lost one was.
- `host` is what one process gives all sessions: time limits, places, the fence between attempts, and the last close.
- Those that others have written are a capability (`capabilities/foreign_environments`).
"""

from rolloutpool_worker.environments.base import (
    ENVIRONMENTS,
    Environment,
    EnvironmentFull,
    OpenedSession,
    SessionScore,
    StepAnswer,
)
from rolloutpool_worker.environments.host import EnvironmentHost
from rolloutpool_worker.environments.session import SessionLife

__all__ = [
    "ENVIRONMENTS",
    "Environment",
    "EnvironmentFull",
    "EnvironmentHost",
    "OpenedSession",
    "SessionLife",
    "SessionScore",
    "StepAnswer",
]
