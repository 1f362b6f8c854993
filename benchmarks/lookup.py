"""A tool that returns real text of any length at next to no cost; `lookup_plugin` registers it."""

from functools import cache
from pydoc_data.topics import topics
from typing import Final

from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_worker.tools import Tool, ToolContext

NAME: Final = "look_up"
_STEP = 1009
"""Prime, so that passages overlap, but few are the same."""


@cache
def _book() -> str:
    # Prose, code and tables as people wrote them, on every machine; half a million characters.
    return "\n".join(topics[name] for name in sorted(topics))


def passage(page: int, characters: int) -> str:
    """Returns so many characters; the same page always has the same text."""
    book = _book()
    start = page * _STEP % (len(book) - characters)
    return book[start : start + characters]


async def _look_up(_: ToolContext, page: int, characters: int) -> object:
    return passage(page, characters)


LOOK_UP = Tool(
    ToolDefinition(
        function=ToolFunction(
            name=NAME,
            description="Look a page up",
            parameters={
                "type": "object",
                "properties": {"page": {"type": "integer"}, "characters": {"type": "integer"}},
                "required": ["page", "characters"],
            },
        )
    ),
    _look_up,
)
