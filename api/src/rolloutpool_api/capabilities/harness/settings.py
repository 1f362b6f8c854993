"""A door's settings."""

from pydantic import Field

from rolloutpool_common.process.settings import ActorSettings


class DoorSettings(ActorSettings):
    """How one door runs."""

    door_port: int = Field(default=9100, ge=0, le=65535)
    """TCP port of the door; 0 picks a free one."""
    door_host: str = "127.0.0.1"
    """Address to listen on. Programs come with keys of their sessions, and nothing else is answered."""
    head_seconds: float = Field(default=10.0, gt=0, le=3600)
    """How long a connection may take to send the head of a request; then it gets 408."""
    door_body_mb: float = Field(default=16.0, gt=0, le=1024)
    """Largest request of a program, MB; larger ones get 413."""
    door_upload_seconds: float = Field(default=30.0, gt=0)
    """How long a program may take to send a request."""
    door_hold_seconds: float = Field(default=290.0, gt=0)
    """How long a request is held for its answer; then 503, and the program asks again and finds the same turn. Agents
    stand 300 s of silence."""
    door_connections: int = Field(default=4000, ge=1)
    """Requests that one door holds; further ones get 503."""
