"""Celery's side of a worker: `app` has the tasks, `pool` runs them as coroutines, `flower` shows them."""
