"""The API: accepts rollouts, hands out results. Knows the store and the name of Celery's task, nothing of tokens."""
