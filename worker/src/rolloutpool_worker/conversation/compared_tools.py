"""Whether the first prompt shows the tools that the batch allows."""

from collections.abc import Sequence
from typing import Any

from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.rendering.shown_tools import find_shown_tools


def compare_tools(
    spec: RolloutSpec, tokenizer: ChatTokenizer, tools: list[dict[str, Any]], prompt_ids: Sequence[int]
) -> tuple[str, ...]:
    """Names the tools that the prompt shows and the batch does not allow, and the other way round, as warnings."""
    shown = find_shown_tools(tokenizer, prompt_ids, tools, spec.template_kwargs)
    allowed = shown.keys() if spec.tools is None else set(spec.tools)
    # Without a list of its own a batch allows all tools, also one whose task needs none of them.
    if spec.tools is None and not any(shown.values()):
        return ()
    wrong = [name for name, is_shown in shown.items() if is_shown != (name in allowed)]
    return tuple(f"{'tool_not_allowed' if shown[name] else 'tool_not_shown'}:{name}" for name in wrong)
