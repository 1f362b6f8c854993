"""The settings of engines."""

from pydantic import BaseModel, Field


class EngineSettings(BaseModel):
    """Holds how one worker asks engines."""

    engine_pause_seconds: float = Field(default=600.0, ge=0)
    """How long an engine may be paused for a weight update, or let its callers wait, before a turn fails."""
