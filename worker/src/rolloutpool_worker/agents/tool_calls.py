"""Agents: the loop of one rollout, from its prompt to the reason why it ended. The built-in one is `tool_calls`.

In environments whose actions are messages, `text_steps` takes its place.

An agent is an async function of a `Conversation`. Others register under `rolloutpool.agents` and are chosen by the
rollout's `agent`:

    @AGENTS.named("one_question")
    async def one_question(conversation: Conversation) -> FinishReason:
        await conversation.sample()
        return FinishReason.STOP

An agent's steps must follow from what it reads from the conversation, and from nothing else (no clock, no random
numbers). If a worker dies, another one runs the agent again from the start and gives it what the journal has; an agent
that then does something else fails with `StaleJournal`. An agent catches no errors of the conversation: its caller
turns them into a typed failure.
"""

import inspect
from collections.abc import Awaitable
from typing import Protocol

from rolloutpool_common.outcomes import FinishReason
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_worker.agents.context_limit import keep_within
from rolloutpool_worker.agents.termination import TERMINATION, TerminationDecision, TerminationStrategy, task_completion
from rolloutpool_worker.conversation.branch import SampledTurn
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.conversation.history import AgentMisuse
from rolloutpool_worker.plugins import Registry


class Agent(Protocol):
    """Runs one conversation to its end."""

    async def __call__(self, conversation: Conversation) -> FinishReason:
        """Why the conversation is over."""
        ...


AGENTS: Registry[Agent] = Registry("rolloutpool.agents")


def begun(name: str, agent: Agent, conversation: Conversation) -> Awaitable[object]:
    """Calls an agent, which may be a plug-in's and keep to no type; `reason_of` reads what it returns.

    The caller awaits it: a coroutine around it would be one more that each step of each turn goes through.
    """
    try:
        # Only the call: what an async function raises comes from the `await`.
        asked: object = agent(conversation)
    except TypeError as error:
        raise AgentMisuse(f"agent {name} must be an async function of a conversation: {error}") from error
    if not inspect.isawaitable(asked):
        raise AgentMisuse(f"agent {name} must be an async function of a conversation; it is none")
    return asked


def reason_of(name: str, returned: object) -> FinishReason:
    """Reads why a conversation ended from what its agent has returned."""
    try:
        return FinishReason(returned)  # type: ignore[arg-type]
    except ValueError:
        raise AgentMisuse(f"agent {name} returned a {type(returned).__name__} that is no FinishReason") from None


@AGENTS.named("tool_calls")
async def tool_calls(conversation: Conversation) -> FinishReason:
    """Samples, runs the tools that the policy called, samples again; until it calls none or a limit is reached.

    In an environment whose actions are messages, each turn is an action instead (`text_steps`).
    """
    if conversation.acts_by_text:
        return await text_steps(conversation)
    spec = conversation.spec
    strategy, hinted = _strategy(spec), bool(spec.metadata)
    while True:
        if spec.context is not None:
            # Here the last turn's tools have run, so an edit keeps their results with the calls that they answer.
            await keep_within(conversation, spec.context)
        turn = await conversation.sample()
        # Before the tools run: a rollout over its budget has no turn left that could read their results.
        if conversation.sampled_tokens >= spec.max_tokens_total:
            return FinishReason.MAX_TOKENS
        decision: object = strategy(turn, conversation.messages)
        if not isinstance(decision, TerminationDecision):
            raise AgentMisuse(
                f"termination strategy {spec.metadata['termination_strategy']} returned a "
                f"{type(decision).__name__}, and no TerminationDecision"
            )
        if decision.end or not (turn.tool_calls or decision.append):
            return _natural_end(turn, strategy)
        if hinted and (reason := _hint_reached(conversation)):
            return reason
        if turn.tool_calls:
            await conversation.run_tools(turn, append=decision.append)
            if conversation.episode_over:
                return FinishReason.ENVIRONMENT
        else:
            await conversation.append_messages(decision.append)
        # Only now, because clients of protocol v1 rely on it: the tools of the last turn are run, and the transcript
        # ends with their results.
        if conversation.turns >= spec.max_turns:
            return FinishReason.MAX_TURNS


@AGENTS.named("text_steps")
async def text_steps(conversation: Conversation) -> FinishReason:
    """Samples, gives the message to the environment, samples again; until the episode is over or a limit is reached."""
    spec = conversation.spec
    while True:
        if spec.context is not None:
            await keep_within(conversation, spec.context)
        turn = await conversation.sample()
        # Before the limits: the environment must see the last action too, because the score may depend on it.
        await conversation.step(turn)
        if conversation.episode_over:
            return FinishReason.ENVIRONMENT
        if conversation.sampled_tokens >= spec.max_tokens_total:
            return FinishReason.MAX_TOKENS
        if reason := _hint_reached(conversation):
            return reason
        if conversation.turns >= spec.max_turns:
            return FinishReason.MAX_TURNS


def _natural_end(turn: SampledTurn, strategy: TerminationStrategy) -> FinishReason:
    if turn.finish_reason == "length":
        return FinishReason.LENGTH
    return FinishReason.STOP if strategy is task_completion or not turn.tool_calls else FinishReason.STRATEGY


def _strategy(spec: RolloutSpec) -> TerminationStrategy:
    name = spec.metadata.get("termination_strategy")
    return (TERMINATION.get(name) if isinstance(name, str) else None) or task_completion


def _hint_reached(conversation: Conversation) -> FinishReason | None:
    """Which hint in `metadata` ends the rollout before this turn's tools run. verl's agent loop has the same ones."""
    metadata = conversation.spec.metadata
    hints = (
        ("max_assistant_turns", conversation.turns, FinishReason.MAX_ASSISTANT_TURNS),
        # Each turn but the first was preceded by messages of the environment.
        ("max_user_turns", conversation.turns - 1, FinishReason.MAX_USER_TURNS),
        ("budget_tokens", conversation.context_tokens, FinishReason.BUDGET_TOKENS),
    )
    for name, reached, reason in hints:
        limit = metadata.get(name)
        # Metadata is free for callers, so a value of another kind is no hint. True is an int to Python.
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0 and reached >= limit:
            return reason
    return None
