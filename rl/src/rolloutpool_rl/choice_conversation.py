"""A conversation of many turns, put together from choices, with the masks of the token ledger.

It works as a worker does: what the policy sampled is kept as ids, and only new messages are rendered. If the server
echoes its prompt, and the echo differs in what was sampled, the conversation forks: each sampled token is trained once,
in the context in which it was really sampled.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rolloutpool_common.protocol.result import Alignment
from rolloutpool_common.rendering import SAMPLED_TAIL
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_rl.errors import ChoiceRefused
from rolloutpool_rl.inference_context import InferenceContext, Rollout
from rolloutpool_rl.openai_choices import field, token_array


class ChoiceConversation:
    """Built turn by turn: `add_choice`, `add_messages`, `add_choice` …, then `rollouts`."""

    def __init__(
        self,
        context: InferenceContext,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Begins with the first prompt.

        Args:
            context: Renders and reads.
            prompt: Messages; a string is one user message.
            tools: What the policy may call.

        Raises:
            ChoiceRefused: The prompt is empty.
            TemplateRefused: The template cannot render it.
        """
        self._context = context
        self._tools = tools
        self._ledger = TokenLedger(context.tokenizer.fingerprint)
        self._ledger.seed(context.tokenize_prompt(prompt, tools=tools).tolist())
        self._turn = 0
        self._history: list[Mapping[str, Any]] | None = (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        )
        """All messages so far; None as soon as a reply came without its message."""
        self._echoed = 0
        self._open = True

    @property
    def prompt_token_ids(self) -> list[int]:
        """The ids that the next call should see."""
        return self._ledger.ids

    def add_choice(self, choice: Any, *, prompt_token_ids: Sequence[int] | None = None, example_id: str = "") -> None:
        """Appends a reply.

        Args:
            choice: With logprobs, and ids or pieces.
            prompt_token_ids: What the server rendered for this call; the choice's own field by default.
            example_id: Named in warnings.

        Raises:
            ChoiceRefused: One of its kinds, or no message was added since the last reply.
            PromptMismatch: On the first turn, if the server rendered another prompt.
        """
        if not self._open:
            raise ChoiceRefused("The policy has spoken already; add the messages that it answers first.")
        ids, logprobs = self._context.sampled_from_choice(choice, example_id)
        echo = prompt_token_ids if prompt_token_ids is not None else field(choice, "prompt_token_ids")
        if echo is not None:
            # On the first turn nothing is sampled yet, so another prompt can only be a wrong setting. Later it may be
            # drift, which the ledger handles.
            if self._turn == 0:
                self._context.check_prompt(self._ledger.ids, echo)
            else:
                self._ledger.accept_echo(token_array(echo).tolist())
            self._echoed += 1
        self._turn += 1
        self._ledger.append_sampled(ids.tolist(), logprobs.tolist(), turn=self._turn)
        message = _message(field(choice, "message"))
        # A history with a gap would render other messages than the policy saw, so it is given up for good.
        self._history = None if message is None or self._history is None else [*self._history, message]
        self._open = False

    def add_messages(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Appends what the environment says.

        Raises:
            ChoiceRefused: There is no reply yet, or messages were added already.
            TemplateRefused: The template does not append these messages.
        """
        if self._open:
            raise ChoiceRefused("Messages follow a reply; those of the first prompt belong in the constructor.")
        delta = self._context.tokenizer.render_delta(
            messages,
            sampled=self._ledger.last_sampled(SAMPLED_TAIL),
            history=self._history,
            tools=self._tools,
            template_kwargs=self._context.template_kwargs,
        )
        self._ledger.append_close(delta.close_ids, turn=self._turn)
        self._ledger.append_glue(delta.glue_ids, turn=self._turn)
        if self._history is not None:
            self._history += messages
        self._open = True

    def rollouts(self, env_name: str, env_example_id: str, reward: float) -> tuple[Rollout, ...]:
        """Makes the training records.

        Args:
            env_name: Copied.
            env_example_id: Copied.
            reward: Of the episode; each record has it.

        Returns:
            One record, or one for each fork.

        Raises:
            ChoiceRefused: No reply was added.
        """
        samples = self._ledger.samples()
        if not samples:
            raise ChoiceRefused("The conversation has no reply yet.")
        # A prompt that was not echoed on one turn is unproved for the whole sequence.
        alignment = Alignment.EXACT if self._echoed == self._turn else Alignment.UNVERIFIED
        records = []
        for sample in samples:
            mask = np.array(sample.response_mask, dtype=np.int32)
            records.append(
                Rollout(
                    env_name,
                    env_example_id,
                    token_array(sample.prompt_ids),
                    token_array(sample.response_ids),
                    mask,
                    np.array(sample.response_logprobs, dtype=np.float32),
                    (mask * reward).astype(np.float32),
                    float(reward),
                    Alignment.FORKED if len(samples) > 1 else alignment,
                )
            )
        return tuple(records)


def _message(message: Any) -> Mapping[str, Any] | None:
    """The reply's message as a mapping; None where there is none."""
    if message is None or isinstance(message, Mapping):
        return message
    dumped: Mapping[str, Any] = message.model_dump(exclude_none=True)
    return dumped
