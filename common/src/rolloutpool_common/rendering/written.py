"""Finds control strings that a template builds: a header such as `'<|' + role + '|>'` is in no source as a whole.

A template is tried out: small conversations are rendered, and every added token that appears in one of the renders is a
control token.
"""

import re
from collections.abc import Iterator
from typing import Any

from rolloutpool_common.rendering.errors import RenderFailed
from rolloutpool_common.rendering.template import SAMPLE_TOOL, Template

_ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "observation", "environment")
_COMPARED = re.compile(r"""role['"]?\]?\s*(?:==|!=)\s*['"](\w+)['"]""")


def written_texts(template: Template) -> Iterator[str]:
    """Renders of small conversations: every role, with and without tools, a call, reasoning, thinking on and off."""
    user: dict[str, Any] = {"role": "user", "content": "x"}
    answer: dict[str, Any] = {"role": "assistant", "content": "y"}
    call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}
    calling: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call]}
    result: dict[str, Any] = {"role": "tool", "tool_call_id": "call00000", "name": "f", "content": "r"}
    conversations = [
        [user],
        [user, answer, user],
        [user, calling, result],
        [user, calling, result, answer],
        [user, {**answer, "reasoning_content": "z"}],
    ]
    for role in dict.fromkeys((*_ROLES, *_COMPARED.findall(template.source))):
        said = {**result, "role": role}
        conversations += [[said, user], [user, answer, said]]
    for tools in (None, [SAMPLE_TOOL]):
        for kwargs in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
            for messages in conversations if not kwargs else conversations[:3]:
                try:
                    yield template.render(messages, tools=tools, template_kwargs=kwargs)
                except RenderFailed:
                    continue
