"""Request bodies that the API accepts, for tests to break."""

from typing import Any


def v1_request(**changes: Any) -> dict[str, Any]:
    """A valid `POST /rollout`; a change to `...` takes the field out."""
    body: dict[str, Any] = {
        "rollout_id": "job-step1-idx0-ab12",
        "server_url": "http://127.0.0.1:8081/",
        "messages": [{"role": "user", "content": "Calculate 5 + 3"}],
        "sampling_params": {},
        "tokenizer_name": "tiny",
    }
    return {key: value for key, value in {**body, **changes}.items() if value is not ...}


def batch(count: int = 2, **changes: Any) -> dict[str, Any]:
    """A valid batch of `count` rollouts."""
    body: dict[str, Any] = {
        "defaults": {"tokenizer_name": "tiny", "server_url": "http://127.0.0.1:8081"},
        "rollouts": [{"messages": [{"role": "user", "content": f"Calculate {i} + 3"}]} for i in range(count)],
    }
    return {**body, **changes}
