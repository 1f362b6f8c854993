"""The base of every answer of the pool's API.

A client may be older than its pool. It ignores fields that it does not know, so that a newer pool can add some.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["Answer"]


class Answer(BaseModel):
    """What the pool answers; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    def __getitem__(self, field: str) -> Any:
        """A field by its name, because clients up to 0.1 returned dictionaries. New code reads attributes.

        Raises:
            KeyError: There is no such field.
        """
        if field not in type(self).model_fields:
            raise KeyError(field)
        return getattr(self, field)
