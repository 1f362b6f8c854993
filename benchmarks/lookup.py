"""A worker's plug-in: a tool whose results are real text of as many characters as asked, at next to no cost."""

from functools import cache
from pydoc_data.topics import topics
from typing import Final

from rolloutpool_worker.tools.base import Tool, ToolContext, tool

__all__ = ["LOOK_UP", "NAME", "passage"]

NAME: Final = "look_up"
_STEP = 1009
"""Prime, so that passages overlap, but few are the same."""


@cache
def _book() -> str:
    # Prose, code and tables as people wrote them, on every machine; half a million characters.
    return "\n".join(topics[name] for name in sorted(topics))


def passage(page: int, characters: int) -> str:
    """So many characters; the same for the same page."""
    book = _book()
    start = page * _STEP % (len(book) - characters)
    return book[start : start + characters]


@tool(
    NAME,
    "Look a page up",
    {
        "type": "object",
        "properties": {"page": {"type": "integer"}, "characters": {"type": "integer"}},
        "required": ["page", "characters"],
    },
)
async def look_up(_: ToolContext, page: int, characters: int) -> object:
    """The passage."""
    return passage(page, characters)


LOOK_UP: Tool = look_up
