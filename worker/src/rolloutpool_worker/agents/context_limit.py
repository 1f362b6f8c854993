"""Keeping a conversation within a token limit by editing its history. It shows how `Conversation.edit` is used.

- `truncate` keeps the task and the last exchange (the policy's last message and what follows it), and drops the rest.
- `summarise` asks the policy for a summary, which costs a turn, and keeps the task and that summary.

The task is everything up to the first user message. A truncation that would shorten nothing is not made; then the
conversation goes on as it is.
"""

from collections.abc import Sequence
from typing import Any

from rolloutpool_common.protocol.messages import text_of
from rolloutpool_common.protocol.options import ContextLimit, OnLimit
from rolloutpool_worker.conversation.conversation import Conversation

Messages = Sequence[dict[str, Any]]

SUMMARISE = (
    "The conversation has become too long. Write down in a few sentences what has been found out so far and what is "
    "left to do. Only your summary will be kept."
)
RESUME = "Summary of the conversation so far:\n"


async def keep_within(conversation: Conversation, limit: ContextLimit) -> None:
    """Edits the history if the context has reached the limit."""
    if not conversation.turns or conversation.context_tokens < limit.limit_tokens:
        return
    # A copy: the summary below appends to the conversation's own list.
    messages = list(conversation.messages)
    prompt, session = len(conversation.spec.messages), conversation.session
    # What a session begins with is part of the task too.
    head = messages[:prompt] if session is not None and session.messages else _head(messages, prompt)
    truncated = [*head, *_last_exchange(messages)]
    if limit.on_limit is OnLimit.TRUNCATE:
        if len(truncated) < len(messages):
            await conversation.edit(truncated)
        return
    # The summary takes a turn, and the answer needs one more.
    if conversation.turns + 2 > conversation.spec.max_turns:
        return
    await conversation.append_messages([{"role": "user", "content": SUMMARISE}])
    summary = text_of((await conversation.sample()).message)
    if summary.strip():
        await conversation.edit([*head, {"role": "user", "content": RESUME + summary}])
    else:
        # A policy that writes no summary (it calls a tool, say) keeps at least its last exchange.
        await conversation.edit(truncated)


def _head(messages: Messages, prompt: int) -> list[dict[str, Any]]:
    """The task: the messages up to the first user message, which is one of the first `prompt` messages."""
    first = next((i for i, message in enumerate(messages[:prompt]) if message["role"] == "user"), prompt - 1)
    return list(messages[: first + 1])


def _last_exchange(messages: Messages) -> list[dict[str, Any]]:
    """The last assistant message and all after it: results of tools stay with the calls that they answer."""
    last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
    return list(messages[last:])
