"""Says what `submit` takes for webhooks."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from rolloutpool_common.capabilities.webhooks.wire import Delivery


class PushedSubmit(TypedDict, total=False):
    """Keyword arguments of `submit`."""

    delivery: "Delivery | Mapping[str, Any] | None"
    """Where results are pushed, besides being kept for reading."""
