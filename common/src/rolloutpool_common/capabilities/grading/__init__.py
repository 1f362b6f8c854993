"""What a rollout is worth, said by a grader once its conversation is complete; and said again later, of ended rollouts.

- `wire`: the fields of requests and results. `errors`: of graders. `metrics`: what is measured of them.
- `stored`: what of it is in Redis, and what the store does for it. `kept`: the stage between conversation and grade.
- `annotating`: what is said of rollouts afterwards, also by people. `annotations`: where that is kept.
- `regrades`: what was asked for, who does it, and how far it is.
"""
