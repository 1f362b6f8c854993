"""Plug-ins for workers under test, as a user would write them; named by ROLLOUTPOOL_PLUGINS."""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from rolloutpool_common.outcomes import FinishReason
from rolloutpool_worker.agents.termination import TERMINATION, TerminationDecision
from rolloutpool_worker.agents.tool_calls import AGENTS
from rolloutpool_worker.conversation.branch import SampledTurn
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.tools import Isolated, ToolContext, ToolFailed, tool

NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


@tool("hang", "Never comes back", NOTHING)
async def hang(_: ToolContext) -> object:
    """Waits for ever."""
    return await asyncio.Event().wait()


@tool("block_the_loop", "Lets nothing else run", NOTHING)
async def block_the_loop(_: ToolContext) -> object:
    """Blocks as a library does that waits in C, for longer than any test lasts."""
    time.sleep(600)  # noqa: ASYNC251  it is what this tool is for
    return None


@tool("doze", "Blocks for a while", NOTHING)
async def doze(_: ToolContext) -> object:
    """Blocks for longer than a worker thinks right."""
    time.sleep(1.2)  # noqa: ASYNC251  it is what this tool is for
    return "slept"


PROGRAM = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}


@tool("run_code", "Runs Python code", PROGRAM, isolated=Isolated(memory_mb=256))
async def run_code(_: ToolContext, code: str) -> object:
    """Runs any code, in a child process."""
    names: dict[str, object] = {}
    exec(code, names)
    return names.get("result")


@tool("refuse", "Refuses", NOTHING)
async def refuse(_: ToolContext) -> object:
    """Refuses with a message of its own."""
    raise ToolFailed("the shop is closed")


@tool("crash", "Has a bug", NOTHING)
async def crash(_: ToolContext) -> object:
    """Fails with a message that the policy must not read."""
    raise RuntimeError("secret detail")


TAKES_TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
ENDINGS = {error.__name__: error for error in (SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit)}


async def end_process() -> None:
    """Ends the process, as far as this is up to Python."""
    sys.exit(3)


@tool("end_as", "Raises what would end more than this call", TAKES_TEXT)
async def end_as(_: ToolContext, text: str) -> object:
    """Raises the error of this name, here or in a task of its own, or cancels the task in which it runs."""
    if text in ENDINGS:
        raise ENDINGS[text]
    if text == "SystemExit in a task":
        return await asyncio.create_task(end_process())
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return await asyncio.Event().wait()


@tool("repeat", "Says a text 300,000 times", TAKES_TEXT)
async def repeat(_: ToolContext, text: str) -> object:
    """Returns more than a worker shows to a policy."""
    return text * 300_000


@tool("whoami", "Tells its context", NOTHING)
async def whoami(context: ToolContext) -> object:
    """Tells for which rollout it runs."""
    return f"{context.rollout_id} {context.turn} {context.metadata.get('who')} {context.idempotency_key}"


@AGENTS.named("deadly")
async def deadly(conversation: Conversation) -> FinishReason:
    """Ends its worker process, as a segmentation fault in a library would."""
    await conversation.sample()
    os._exit(9)


@AGENTS.named("clumsy")
async def clumsy(conversation: Conversation) -> FinishReason:
    """Has a bug, and secrets in its local variables."""
    spec, key = conversation.spec, conversation.spec.callback_api_key
    raise RuntimeError("a bug in an agent") from ValueError(len(spec.messages), bool(key))


@TERMINATION.named("after_first_call")
def after_first_call(turn: SampledTurn, messages: Sequence[dict[str, Any]]) -> TerminationDecision:
    """Ends the rollout after the first turn, whether it calls tools or not."""
    del turn, messages
    return TerminationDecision(end=True)


@TERMINATION.named("ask_again")
def ask_again(turn: SampledTurn, messages: Sequence[dict[str, Any]]) -> TerminationDecision:
    """Has the user ask one more question before the end."""
    if turn.tool_calls:
        return TerminationDecision(end=False)
    asked = sum(message["role"] == "user" for message in messages)
    if asked >= 2:
        return TerminationDecision(end=True)
    return TerminationDecision(end=False, append=({"role": "user", "content": "Calculate 2 * 3"},))


@TERMINATION.named("stumbling")
def stumbling(turn: SampledTurn, messages: Sequence[dict[str, Any]]) -> TerminationDecision:
    """Has a bug, and says what it read."""
    raise LookupError(f"no idea what to do with {turn} and {messages}")
