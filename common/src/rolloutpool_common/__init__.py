"""Holds what all sides of rolloutpool agree on.

The rooms:

- `protocol` holds every model that crosses the wire.
- `tokens` holds the ledger: which ids a rollout consists of, and which of them the policy sampled.
- `rendering` turns messages into token ids; nothing else touches a tokenizer.
- `store` keeps everything in Redis; nothing else names a Redis key.
- `queue` makes the Celery app and publishes tickets to it.
- `security` checks API keys and the hosts that may be called.
- `process` is what every process needs: logs, rare garbage collection, failpoints.
- `testing` is a tiny tokenizer for tests and demos.
- `outcomes` and `errors` list every way in which a rollout can end.

The base install needs pydantic alone. The extra `store` adds Redis, `broker` adds Celery, `rendering` adds tokenizers,
and `service` adds logging and settings.
"""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("rolloutpool-common")
