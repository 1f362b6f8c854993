"""Celery's settings, for the side that publishes tickets and the side that runs them.

A ticket carries ids only: no prompt, no key, no secret. Results do not travel through Celery, because keys of our own
are ten times cheaper. A worker that takes a ticket removes it from the broker at once: if the worker dies, its missing
heartbeat shows it, and a ticket that was lost before its claim is published again (`publisher`).

**TLS.** A `rediss://` URL means to the broker what it means to the store: the certificate is verified, unless the URL
itself says otherwise. Left to itself, kombu verifies nothing, and gave the password to a stranger with a certificate of
its own. Flower reads Celery's setting and not the URL, so the URL's `ssl_` options become that setting.
"""

from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit, urlunsplit

from celery import Celery
from kombu import Queue
from kombu.transport import TRANSPORT_ALIASES

from rolloutpool_common.protocol.batch import Priority

TASK_NAME = "rolloutpool.ticket"
PREFLIGHT_NAME = "rolloutpool.preflight"
KEY_PREFIX = "rollouts:"
"""All of Celery's keys in Redis begin with it, so that an ACL can tell them from ours."""


_TRANSPORT = "rolloutpool_common.queue.kombu_compat:LeanTransport"
for _scheme in ("redis", "rediss"):
    TRANSPORT_ALIASES[_scheme] = _TRANSPORT


def queue_name(priority: Priority, offer: str = "") -> str:
    """Returns the name of a priority class's queue; with the digest of an offer, of the one for its workers alone."""
    return f"rollouts.{priority}.{offer}" if offer else f"rollouts.{priority}"


def offer_queue(priority: Priority, offer: str) -> Queue:
    """Returns the queue of an offer. It is not declared: the broker would remember its name for ever."""
    return Queue(queue_name(priority, offer), no_declare=True)


def broker_url(redis_url: str) -> str:
    """Translates a Redis URL into kombu's spelling, which differs for unix sockets; `broker_tls` has the rest."""
    parts = urlsplit(redis_url)
    if parts.scheme == "rediss":
        others = [(name, value) for name, value in parse_qsl(parts.query) if not name.startswith("ssl_")]
        return urlunsplit(parts._replace(query=urlencode(others)))
    if parts.scheme != "unix":
        return redis_url
    password = f":{parts.password}@" if parts.password else ""
    database = parse_qs(parts.query).get("db")
    chosen = f"?virtual_host={database[0]}" if database else ""
    return f"redis+socket://{password}{parts.path}{chosen}"


def broker_tls(redis_url: str) -> dict[str, Any] | None:
    """Returns what the connections of a `rediss://` URL are made with, in redis-py's words; None without TLS."""
    parts = urlsplit(redis_url)
    if parts.scheme != "rediss":
        return None
    said: dict[str, Any] = {name: value for name, value in parse_qsl(parts.query) if name.startswith("ssl_")}
    if (checked := said.get("ssl_check_hostname")) is not None:
        said["ssl_check_hostname"] = checked.lower() not in ("false", "no", "0", "")
    return {"ssl_cert_reqs": "required", **said}


def make_celery(redis_url: str, offer: str = "") -> Celery:
    """Makes a Celery app with the pool's settings. It does not connect yet."""
    app = Celery("rolloutpool", broker=broker_url(redis_url), set_as_current=False)
    app.conf.update(_settings(), broker_use_ssl=broker_tls(redis_url) or False)
    if offer:
        app.conf.task_queues = [*app.conf.task_queues, *(offer_queue(priority, offer) for priority in Priority)]
    return app


def _settings() -> dict[str, Any]:
    return {
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        # With late acknowledgement, kombu requeues all that runs whenever a connection is lost, and ends the worker
        # while Redis is away.
        "task_acks_late": False,
        "worker_prefetch_multiplier": 1,
        # Reserves no more tickets than there are slots (Redis only).
        "worker_disable_prefetch": True,
        "task_default_queue": queue_name(Priority.DEFAULT),
        "task_queues": [Queue(queue_name(priority)) for priority in Priority],
        "task_create_missing_queues": False,
        "broker_transport_options": {
            # kombu would keep a second record of what was taken in keys of its own; claims and outbox have it already.
            "ack_emulation": False,
            "socket_timeout": 30,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 25,
            "max_connections": 64,
            "global_keyprefix": KEY_PREFIX,
            # Tickets have no priority within their queue; kombu would wait for four lists per queue instead of one.
            "priority_steps": [0],
            # retry_on_timeout must stay unset: it turns kombu's pipelined publishing off.
        },
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_pool_limit": 10,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_enable_prefetch_count_reduction": True,
        # Draining is our own: tasks in threads ignore the soft shutdown (celery#10490).
        "worker_soft_shutdown_timeout": 0,
        "worker_send_task_events": True,
        "task_send_sent_event": True,
        "task_track_started": False,
        "worker_hijack_root_logger": False,
        "enable_utc": True,
        "timezone": "UTC",
    }
