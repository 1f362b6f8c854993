"""The settings of tracing."""

from pydantic import BaseModel, Field, field_validator


class TracingSettings(BaseModel):
    """Holds where one worker sends its traces, and how many."""

    otel_endpoint: str = ""
    """Where traces are sent, OTLP over HTTP, like `http://collector:4318`; empty sends none. Needs the extra `otel`."""
    otel_sample: float = Field(default=1.0, ge=0, le=1)
    """The share of groups whose rollouts are traced, 0 to 1."""

    @field_validator("otel_endpoint")
    @classmethod
    def _is_http(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://, like http://collector:4318")
        return value
