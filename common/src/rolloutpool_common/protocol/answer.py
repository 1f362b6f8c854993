"""The base of every answer of the pool's API.

A client may be older than its pool. It ignores fields that it does not know, so that a newer pool can add some.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict


def is_none(value: object) -> bool:
    """Whether a field is left out that is only there where it says something."""
    return value is None


class Answer(BaseModel):
    """Holds what the pool answers; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    def __getitem__(self, field: str) -> Any:
        """A field by its name, because clients up to 0.1 returned dictionaries. New code reads attributes."""
        if field not in type(self).model_fields:
            raise KeyError(field)
        return getattr(self, field)
