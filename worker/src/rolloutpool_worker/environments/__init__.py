"""Environments: tools that have state, with a session for each rollout.

- `base` says what an environment is and how to add one. Start here.
- `session` is the life of one rollout's session: opened, asked, scored, closed. `resume` brings a fresh one to where a
  lost one was.
- `host` is what one process gives all sessions: time limits, places, the fence between attempts, and the last close.
- `operators_file` makes environments of the operator's file.
- `http` speaks to resources servers in the form of NeMo Gym (through `server_calls`), `mcp` to MCP servers (`mcp_sdk`),
  `openenv` to those of OpenEnv (`websocket`). `connections` says which addresses may be called, and what bounds a call.
- `package` has environments that are Python packages (`skyrl_gym`, `gem`), each session in a thread (`session_thread`).
- `tool_servers` are MCP servers that rollouts of protocol v1 name, where the operator allows that.
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
