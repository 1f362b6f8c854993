"""Holds what one worker process gives the tools of all its rollouts."""

from dataclasses import dataclass

from rolloutpool_worker.tools.isolated import IsolatedTools
from rolloutpool_worker.tools.limits import ToolLimits
from rolloutpool_worker.tools.watch import ToolWatch


@dataclass(frozen=True)
class ToolHost:
    """The limits, the watch and the child processes that the rollouts of a process share."""

    limits: ToolLimits
    watch: ToolWatch
    isolated: IsolatedTools
