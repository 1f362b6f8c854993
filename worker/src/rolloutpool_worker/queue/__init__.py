"""Celery's side of a worker.

`app` has the tasks, `pool` runs them as coroutines, `slots` counts the rollouts that run, `flower` shows them.
`celery_compat` and `kombu_compat` list what is used of the libraries beyond their documented interfaces.
"""
