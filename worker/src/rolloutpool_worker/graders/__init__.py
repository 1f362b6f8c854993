"""Graders: functions that say what a rollout is worth, once its conversation is complete.

- `base` says what a grader is and how to add one. Start here.
- `grades` checks what a grader returns.
- `host` asks graders: on event loops of their own (`own_loop`), or in child processes, within time limits.

When they are asked, again and by whom, is decided by `rollout.grading`.
"""

from rolloutpool_common.protocol.grading import Grade
from rolloutpool_worker.graders.base import GRADERS, Grader, GraderAgain, GraderBusy, HeldForGroup, grader
from rolloutpool_worker.graders.host import GraderHost

__all__ = ["GRADERS", "Grade", "Grader", "GraderAgain", "GraderBusy", "GraderHost", "HeldForGroup", "grader"]
