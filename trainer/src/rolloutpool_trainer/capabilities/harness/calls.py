"""The calls by which a session's owner asks for its address, and ends it."""

from rolloutpool_common.capabilities.harness.wire import HarnessSession, SessionEnd
from rolloutpool_trainer.client.calls import Call, read_model, resource


def session(uid: str) -> Call[HarnessSession]:
    """`GET /v1/sessions/{id}`."""
    return Call(method="GET", path=resource("sessions", uid), read=read_model(HarnessSession))


def end_session(uid: str, how: SessionEnd) -> Call[HarnessSession]:
    """`POST /v1/sessions/{id}/end`; sent again, it is the same end."""
    return Call(
        method="POST",
        path=f"{resource('sessions', uid)}/end",
        headers={"Content-Type": "application/json"},
        body=how.model_dump_json().encode(),
        read=read_model(HarnessSession),
    )
