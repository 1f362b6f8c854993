"""The fields that webhooks add to the batch API: where results go, and what has become of them."""

from pydantic import BaseModel, ConfigDict, Field, field_validator

from rolloutpool_common.protocol.answer import Answer


class Delivery(BaseModel):
    """Says where finished results are pushed; they can be polled as well."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    callback_url: str
    secret: str = Field(min_length=8, max_length=512, repr=False)
    """Signs each push (Standard Webhooks): `whsec_` + base64, or any text."""

    @field_validator("callback_url")
    @classmethod
    def _callback_url(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")) or not value.split("://", 1)[1].split("/", 1)[0]:
            raise ValueError(f"callback_url must be an HTTP/HTTPS URL with a host, got: {value}")
        return value


class DeliveryField(BaseModel):
    """Holds what a batch may ask for."""

    delivery: Delivery | None = None
    """Where results are pushed: `{"callback_url", "secret"}`."""


class DeliveryCounts(BaseModel):
    """Holds what the state of a batch says."""

    delivery: dict[str, int] = Field(default_factory=dict)
    """Pushes by state (pending, delivered, dead, stopped); empty without `delivery`."""


class DeadPushes(BaseModel):
    """Holds what the dead letters of a pool say."""

    pushes: list[str] = Field(default_factory=list)
    """Rollouts whose result could not be pushed to its webhook."""


class PushesRetried(Answer):
    """`POST /v1/batches/{id}/pushes/retry`."""

    batch_id: str
    due: int
    """Results of the batch that are pushed now: those that waited, and those that had been given up."""
