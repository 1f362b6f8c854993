"""What a rollout is worth, said by a grader once its conversation is complete; and said again later, of ended rollouts.

- `wire`: the fields of requests and results. `regrading`: what a regrade is asked for, and says. `errors`: of graders.
- `stored`: what of it is in Redis, and what the store does for it. `kept`: the stage between conversation and grade.
- `annotating`: what is said of rollouts afterwards, also by people. `annotations`: where that is kept.
- `regrades`: what was asked for, who does it, and how far it is. `metrics`: what is measured of graders.
"""
