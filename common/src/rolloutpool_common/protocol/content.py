"""Content in parts: the form of a message's content that is a list. The pool takes parts of text, and no others.

A template that does not know a part drops it, or prints it as Python writes it, and the prompt is then another one than
its sender meant. So a part that is no text is refused where it comes in: from a caller with 422, from a tool, an
environment or a policy as their fault. Nothing behind that has to look for one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_LONGEST_TYPE = 40
_MEDIA = frozenset({"audio", "image", "input_image", "video"})
"""Types of parts that need not have a key of the same name."""


def part_fault(part: Any) -> str | None:
    """Says why a part of content cannot be taken, without quoting what it holds."""
    if not isinstance(part, Mapping):
        return f'not an object ({type(part).__name__}); only {{"type": "text", "text": "..."}} is supported'
    kind = part.get("type")
    if kind != "text":
        named = f"type {kind[:_LONGEST_TYPE]}" if isinstance(kind, str) and kind else "no type"
        return f"{named}; only text is supported"
    if not isinstance(part.get("text"), str):
        return "`text` must be a string" if "text" in part else "a part of type text needs `text`"
    return None


def part_faults(content: Any) -> Iterator[tuple[int, str]]:
    """Yields the place of each part that cannot be taken, and why; nothing for content that is no list."""
    if isinstance(content, list | tuple):
        for place, part in enumerate(content):
            if (fault := part_fault(part)) is not None:
                yield place, fault


def content_fault(content: Any) -> str | None:
    """Says which part of content cannot be taken, and why."""
    return next((f"content[{place}]: {fault}" for place, fault in part_faults(content)), None)


def joined_text(parts: Sequence[Mapping[str, Any]]) -> str:
    """Returns the texts of parts as one, with nothing between them."""
    return "".join(part["text"] for part in parts)


def looks_like_parts(value: Any) -> bool:
    """Whether a value that a tool returns is content in parts, and no other list that happens to have types.

    A part has a key of the name of its type (`{"type": "image_url", "image_url": ...}`), or a type that only media
    have. A list of files (`{"type": "file", "path": ...}`) has neither, and stays what it is.
    """
    return isinstance(value, list | tuple) and bool(value) and all(map(_looks_like_part, value))


def _looks_like_part(value: Any) -> bool:
    kind = value.get("type") if isinstance(value, Mapping) else None
    return isinstance(kind, str) and (kind in value or kind in _MEDIA)
