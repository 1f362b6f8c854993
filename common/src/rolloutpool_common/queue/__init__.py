"""Celery, as all sides use it: `celery_app` makes the app, `publisher` turns queued rollouts into messages."""
