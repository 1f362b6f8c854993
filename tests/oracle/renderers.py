"""What is under test, behind one small seam: a function that gives the ids behind a sampled turn, or refuses.

Another renderer is named as `module:function` (`--renderer`); it has the arguments of `todays` and raises `Refused`.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

Message = dict[str, Any]
Renderer = Callable[
    [Path, Sequence[Message], Sequence[Message], Sequence[int], Sequence[Message] | None, Mapping[str, Any]], list[int]
]


class Refused(Exception):
    """The renderer does not give ids. The message is its reason."""


def load(name: str) -> Renderer:
    """A renderer by its name; `today` is the project's own."""
    if name == "today":
        return todays
    module, _, function = name.partition(":")
    found: Renderer = getattr(importlib.import_module(module), function)
    return found


def todays(
    directory: Path,
    history: Sequence[Message],
    new: Sequence[Message],
    sampled: Sequence[int],
    tools: Sequence[Message] | None,
    kwargs: Mapping[str, Any],
) -> list[int]:
    """The project's own, told what a worker tells it: the last sampled ids, not all. Raises Refused."""
    from rolloutpool_common.rendering import SAMPLED_TAIL, TemplateRefused  # the oracle itself must not load this

    try:
        delta = _tokenizer(directory).render_delta(
            new, sampled=sampled[-SAMPLED_TAIL:], history=history, tools=tools, template_kwargs=kwargs
        )
    except TemplateRefused as refusal:
        raise Refused(f"{type(refusal).__name__}: {refusal.reason}") from None
    return [*delta.close_ids, *delta.glue_ids]


@lru_cache(maxsize=2)
def _tokenizer(directory: Path) -> Any:
    from rolloutpool_common.rendering import load_tokenizer

    return load_tokenizer(str(directory))
