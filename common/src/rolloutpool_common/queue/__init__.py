"""Celery, as all sides use it: `celery_app` makes the app, `publisher` turns queued rollouts into messages.

`kombu_compat` lists what publishing uses of kombu beyond its documented interface.
"""
