"""Says which tools a prompt shows to the policy, found in its text.

A template may write tools in any form, but it writes their names and descriptions. So:

1. A tool counts as shown if its description and its name are in the decoded prompt. White space, Unicode normalisation
   and JSON escapes are not compared. Of a tool without a description, the name in quotes is looked for.
2. Where a tool is not found, a prompt with it is rendered with our own template. If it is not found there either, this
   template writes tools in a form that the rule does not know, and nothing is said of the tool.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rolloutpool_common.rendering.drift import comparable, holds
from rolloutpool_common.rendering.errors import TemplateRefused
from rolloutpool_common.rendering.template import Tools
from rolloutpool_common.rendering.tokenizer import ChatTokenizer

_QUESTION = [{"role": "user", "content": "x"}]


def find_shown_tools(
    tokenizer: ChatTokenizer,
    prompt_ids: Sequence[int],
    tools: Tools,
    template_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, bool]:
    """By name, whether a prompt shows a tool; without those of which that cannot be told."""
    seen = comparable(tokenizer.decode(prompt_ids))
    found = {_name(tool): _is_in(seen, tool) for tool in tools}
    missing = [tool for tool in tools if not found[_name(tool)]]
    if missing:
        try:
            ours = tokenizer.render_prompt(_QUESTION, tools=missing, template_kwargs=template_kwargs)
        except TemplateRefused:
            ours = []
        ours_seen = comparable(tokenizer.decode(ours))
        for tool in missing:
            if not _is_in(ours_seen, tool):
                del found[_name(tool)]
    return found


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])


def _is_in(seen: str, tool: Mapping[str, Any]) -> bool:
    name, description = _name(tool), tool["function"].get("description")
    if isinstance(description, str) and description.strip():
        return holds(seen, description) and comparable(name) in seen
    return any(f"{quote}{comparable(name)}{quote}" in seen for quote in "\"'`")
