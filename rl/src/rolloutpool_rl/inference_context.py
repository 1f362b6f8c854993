"""Training records from the replies of an OpenAI-style server, for programs that call the policy themselves.

The prompt's ids are those of the chat template, or the record is refused: a prompt without its template, or with
another one, gives log-probabilities for a text that the policy never saw. Sampled ids are those that the server names,
never made from text. `alignment` is `exact` only if the server echoed the prompt that it used.
"""

import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rolloutpool_common.protocol.result import Alignment
from rolloutpool_common.rendering import ChatTokenizer, TemplateMissing, load_tokenizer
from rolloutpool_rl.errors import ChoiceRefused, PromptMismatch, ShapeMismatch
from rolloutpool_rl.openai_choices import field, logprobs_of, sampled_ids, token_array

_log = logging.getLogger(__name__)

_SHORT = 5
_ROLE_CONTENT = (
    "{{ bos_token or '' }}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
)


class RolloutWarning(UserWarning):
    """Something about a reply is suspicious, but it can be trained on."""


class ShortReplyWarning(RolloutWarning):
    """A reply has fewer than five tokens."""


class ZeroLogprobsWarning(RolloutWarning):
    """All log-probabilities of a reply are 0.0: the server does not report them, so importance ratios are wrong."""


class PlainFormattingWarning(RolloutWarning):
    """The tokenizer has no chat template; messages are written as `role: content`, which no server may have seen."""


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One training sequence."""

    env_name: str
    env_example_id: str
    prompt_tokens: npt.NDArray[np.int32]
    """[P]."""
    response_tokens: npt.NDArray[np.int32]
    """[R]; from the first sampled token to the last."""
    response_mask: npt.NDArray[np.int32]
    """[R]; 1 where the policy sampled the token."""
    response_logprobs: npt.NDArray[np.float32]
    """[R]; 0.0 where the mask is 0."""
    token_rewards: npt.NDArray[np.float32]
    """[R]; the episode's reward where the mask is 1."""
    episode_reward: float
    alignment: Alignment
    """`exact` if the server echoed each prompt and it was this one; `unverified` if it echoed none of them or not
    all; `forked` if the conversation had to be split because a prompt was rendered anew."""


class InferenceContext:
    """A tokenizer, its template arguments and what was suspicious so far. Use it from one thread."""

    def __init__(self, tokenizer: ChatTokenizer, *, template_kwargs: Mapping[str, Any] | None = None) -> None:
        """Makes a context; `template_kwargs` are those of the server, for example a date or `enable_thinking`."""
        self.tokenizer = tokenizer
        self.template_kwargs = dict(template_kwargs or {})
        self.warning_counts: Counter[str] = Counter()
        """How often each class of RolloutWarning was issued, by name."""

    @classmethod
    def load(
        cls,
        name: str,
        revision: str | None = None,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        on_missing_template: Literal["raise", "role_content"] = "raise",
    ) -> "InferenceContext":
        """Loads a tokenizer and makes its context.

        Args:
            name: Of a hub repository or a directory.
            revision: Commit, branch or tag of a hub repository.
            template_kwargs: Those that the server renders with.
            on_missing_template: What to do without a chat template: `raise` an error, or warn and write messages as
                lines `role: content` without a generation prompt.

        Raises:
            TemplateMissing: There is no chat template.
            TokenizerLoadError: The tokenizer cannot be loaded.
        """
        try:
            return cls(load_tokenizer(name, revision), template_kwargs=template_kwargs)
        except TemplateMissing:
            if on_missing_template != "role_content":
                raise
        # Loaded again, now with a template of our own; a tokenizer that has one never comes here.
        context = cls(load_tokenizer(name, revision, missing_template=_ROLE_CONTENT), template_kwargs=template_kwargs)
        context.warn(PlainFormattingWarning, name)
        return context

    def tokenize_prompt(
        self, prompt: str | Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> npt.NDArray[np.int32]:
        """Renders a prompt.

        Args:
            prompt: Messages; a string is one user message.
            tools: What the policy may call.

        Returns:
            Ids [P], with the generation prompt.

        Raises:
            ChoiceRefused: The prompt is empty.
            TemplateRefused: The template cannot render it.
        """
        if not prompt:
            raise ChoiceRefused("The prompt is empty.")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return token_array(self.tokenizer.render_prompt(messages, tools=tools, template_kwargs=self.template_kwargs))

    def response_tokens_from_choice(self, choice: Any) -> npt.NDArray[np.int32]:
        """Reads the ids [R] that the policy sampled; see `openai_choices.sampled_ids`."""
        return sampled_ids(choice, self.tokenizer)

    def logprobs_from_choice(self, choice: Any) -> npt.NDArray[np.float32]:
        """Reads the log-probability [R] of each sampled token; see `openai_choices.logprobs_of`."""
        return logprobs_of(choice)

    def sampled_from_choice(
        self, choice: Any, example_id: str = ""
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Reads both; warns of very short replies, and of log-probabilities that are all 0.

        Args:
            choice: With logprobs, and ids or pieces.
            example_id: Named in warnings.

        Returns:
            Ids [R] and log-probabilities [R].

        Raises:
            ChoiceRefused: One of its kinds, or there are not as many log-probabilities as ids.
        """
        ids, logprobs = self.response_tokens_from_choice(choice), self.logprobs_from_choice(choice)
        if len(ids) != len(logprobs):
            raise ChoiceRefused(f"The choice has {len(ids)} tokens and {len(logprobs)} log-probabilities.")
        if len(ids) < _SHORT:
            self.warn(ShortReplyWarning, example_id)
        if not logprobs.any():
            self.warn(ZeroLogprobsWarning, example_id)
        return ids, logprobs

    def create_rollout_from_choice(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        choice: Any,
        env_name: str,
        env_example_id: str,
        reward: float,
        *,
        prompt_token_ids: Sequence[int] | None = None,
    ) -> Rollout:
        """Makes the record of one prompt and one reply; for more turns use `ChoiceConversation`.

        Args:
            prompt: As for `tokenize_prompt`.
            choice: With logprobs, and ids or pieces.
            env_name: Copied.
            env_example_id: Copied, and named in warnings.
            reward: Of the episode, and of each of its tokens.
            prompt_token_ids: [P], what the server says it rendered; the choice's own field of this name by default.

        Raises:
            ChoiceRefused: One of its kinds; PromptMismatch if the server rendered another prompt.
            TemplateRefused: The template cannot render the prompt.
        """
        prompt_tokens = self.tokenize_prompt(prompt)
        echo = prompt_token_ids if prompt_token_ids is not None else field(choice, "prompt_token_ids")
        if echo is not None:
            self.check_prompt(prompt_tokens, echo)
        ids, logprobs = self.sampled_from_choice(choice, env_example_id)
        # One reply is sampled from end to end, so its mask has no 0.
        return Rollout(
            env_name,
            env_example_id,
            prompt_tokens,
            ids,
            np.ones(len(ids), dtype=np.int32),
            logprobs,
            np.full(len(ids), reward, dtype=np.float32),
            float(reward),
            Alignment.UNVERIFIED if echo is None else Alignment.EXACT,
        )

    def check_prompt(self, ours: Sequence[int] | npt.NDArray[np.int32], echo: Sequence[int]) -> None:
        """Compares the server's prompt with ours.

        Args:
            ours: [P].
            echo: [P], what the server says it rendered.

        Raises:
            PromptMismatch: They differ.
        """
        theirs = token_array(echo)
        if not np.array_equal(theirs, ours):
            n = min(len(theirs), len(ours))
            differing = np.flatnonzero(theirs[:n] != np.asarray(ours)[:n])
            first = int(differing[0]) if len(differing) else n
            raise PromptMismatch(
                f"The server's prompt has {len(theirs)} ids, that of {self.tokenizer.name} has {len(ours)}, and they "
                f"differ from position {first} on. Use the server's tokenizer, template, tools and template_kwargs."
            )

    def warn(self, category: type[RolloutWarning], example_id: str) -> None:
        """Issues a warning, logs it with the example's id, and counts it.

        Args:
            category: Its docstring is the text.
            example_id: Of the example whose reply is suspicious.
        """
        # Python may show a warning once only; the count and the log have every one.
        self.warning_counts[category.__name__] += 1
        _log.warning("%s example=%s", category.__name__, example_id)
        warnings.warn(f"{(category.__doc__ or '').strip()} ({example_id})", category, stacklevel=3)


def rewards_from_spans(
    mask: Sequence[int] | npt.NDArray[np.int32], spans: Iterable[tuple[int, int, float]]
) -> npt.NDArray[np.float32]:
    """Makes token rewards from spans of the response.

    Args:
        mask: [R].
        spans: (start, end, reward), in positions of the response, end exclusive. Each sampled token of a span gets its
            reward; where spans overlap, their rewards add up.

    Returns:
        [R].

    Raises:
        ShapeMismatch: A span is empty or outside the response.
        ChoiceRefused: Nothing was sampled in a span.
    """
    sampled = np.asarray(mask) == 1
    rewards = np.zeros(len(sampled), dtype=np.float64)
    for start, end, reward in spans:
        if not 0 <= start < end <= len(sampled):
            raise ShapeMismatch(f"The span [{start}, {end}) is empty or outside a response of {len(sampled)} tokens.")
        # Each reward lands on sampled tokens only, so without one it would vanish without a word.
        if not sampled[start:end].any():
            raise ChoiceRefused(f"Nothing in the span [{start}, {end}) was sampled, so its reward would be lost.")
        rewards[start:end] += reward * sampled[start:end]
    return rewards.astype(np.float32)
