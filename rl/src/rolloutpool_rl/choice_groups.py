"""Records of inference choices as groups and batches, the form in which Marin trains them.

A request with `n` choices gives one group: its records share the prompt. A batch is groups, and the step of the
weights that sampled them. Names are those of Marin's `RolloutGroup`, `RolloutBatch` and `RolloutMetadata`
(lib/marin/src/marin/rl/types.py at 247c3a93d); a `Rollout` here also has a mask and says how well its tokens are
proved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rolloutpool_rl.advantages import group_advantages
from rolloutpool_rl.errors import ChoiceRefused
from rolloutpool_rl.inference_context import InferenceContext, Rollout
from rolloutpool_rl.openai_choices import field as choice_field


@dataclass(frozen=True, slots=True)
class RolloutMetadata:
    """Says where and when records were sampled."""

    worker_id: str = ""
    timestamp: float = 0.0
    """Seconds since 1970."""
    weight_step: int = -1
    """The step of the weights; -1 if it is not known."""


@dataclass(frozen=True, slots=True, eq=False)
class RolloutGroup:
    """The records of one prompt."""

    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RolloutBatch:
    """Groups that are trained together."""

    groups: tuple[RolloutGroup, ...]
    metadata: RolloutMetadata = field(default_factory=RolloutMetadata)

    @property
    def rollouts(self) -> list[Rollout]:
        """All records, group by group."""
        return [rollout for group in self.groups for rollout in group.rollouts]

    def advantages(
        self, *, std: Literal["group", "batch"] | None = "group", leave_one_out: bool = False
    ) -> list[npt.NDArray[np.float32]]:
        """Computes the advantage of each token, in the order of `rollouts`; see `advantages.group_advantages`.

        Returns:
            For each record [R]: its advantage where the mask is 1, else 0.0.
        """
        rewards = [rollout.episode_reward for rollout in self.rollouts]
        groups = [number for number, group in enumerate(self.groups) for _ in group.rollouts]
        gains = group_advantages(rewards, groups, std=std, leave_one_out=leave_one_out)
        return [
            (gain * rollout.response_mask).astype(np.float32)
            for gain, rollout in zip(gains, self.rollouts, strict=True)
        ]


def group_from_response(
    context: InferenceContext,
    prompt: str | Sequence[Mapping[str, Any]],
    response: Any,
    env_name: str,
    env_example_id: str,
    rewards: Sequence[float],
) -> RolloutGroup:
    """Makes a group of all choices of one chat completion.

    Args:
        context: Renders and reads.
        prompt: What was asked; text is one user message.
        response: With `choices`; an `openai` object or a dict. A server's `prompt_token_ids` beside the choices, as
            vLLM sends them, are compared with ours.
        env_name: Copied.
        env_example_id: Copied, and named in warnings.
        rewards: One for each choice.

    Raises:
        ChoiceRefused: One of its kinds for one of the choices; or there are no choices, or not as many rewards.
        TemplateRefused: The template cannot render the prompt.
    """
    choices = list(choice_field(response, "choices") or [])
    if not choices or len(choices) != len(rewards):
        raise ChoiceRefused(f"The response has {len(choices)} choices, and {len(rewards)} rewards were given.")
    echo = choice_field(response, "prompt_token_ids")
    return RolloutGroup(
        tuple(
            context.create_rollout_from_choice(prompt, choice, env_name, env_example_id, reward, prompt_token_ids=echo)
            for choice, reward in zip(choices, rewards, strict=True)
        )
    )
