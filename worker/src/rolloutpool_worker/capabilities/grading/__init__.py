"""Grading in a worker.

- `base` says what a grader is and how to add one. Start here.
- `grades` checks what a grader returns.
- `host` asks graders: on event loops of their own (`own_loop`), or in child processes, within time limits.
- `stage` decides when they are asked, again and by whom. `regrading` has them grade ended rollouts again.
- `settings` bound all that. `opened` is the capability's part of a process, and of the rollouts that name a grader.
"""
