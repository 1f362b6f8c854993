"""The public scripted policy as an engine would have it: it reads its conversation from the prompt's ids alone.

A continued turn says the rest of what it began. A turn that is sampled anew in a later attempt is another one, as it
would be with a model.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from tests.support.imitated_engine import CallName

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.testing import ScriptedPolicy

_MESSAGE = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>\n(.*)\n</tool_response>", re.DOTALL)


class ScriptedIds:
    """Calculates, in as many turns as it is told to."""

    def __init__(self, tokenizer: ChatTokenizer, *, turns: int) -> None:
        """Takes the rollouts' tokenizer, whose template is ChatML."""
        self._tokenizer = tokenizer
        self._policy = ScriptedPolicy(tokenizer, turns=turns)

    def draw(self, named: CallName, prompt: list[int]) -> Iterator[tuple[int, float]]:
        """Samples id by id, each with its log-probability, up to the close id, which ends the turn.

        Args:
            named: Which call it is.
            prompt: Its prompt; where the call goes on after an abort, it ends with what the turn has so far.
        """
        before, done = sampled_before(self._tokenizer, prompt)
        whole = self._whole(named, before)
        assert done == list(whole.token_ids[: len(done)]), "what the turn has so far is not what was sampled"
        yield from zip(whole.token_ids[len(done) :], whole.logprobs[len(done) :], strict=True)

    def _whole(self, named: CallName, before: list[int]) -> Generation:
        """What is said in a turn, from its first id to its close id."""
        params = GenerateParams(
            rollout_id=f"{named.uid}/{named.attempt}",
            turn=named.turn,
            messages=said(self._tokenizer.decode(before)),
            tools=None,
            temperature=1.0,
            top_p=1.0,
            max_tokens=2**31,
            stop=None,
            logprobs=True,
        )
        # It has no latency, so it never waits, and one step runs it to its end.
        try:
            self._policy(before, params).send(None)
        except StopIteration as done:
            generation: Generation = done.value
            return generation
        raise AssertionError("the scripted policy waits for something")


def said(text: str) -> list[dict[str, Any]]:
    """Reads the messages of a ChatML text, as far as the scripted policy looks at them."""
    messages = []
    for role, content in _MESSAGE.findall(text):
        response = _RESPONSE.fullmatch(content)
        messages.append({"role": role, "content": response[1] if response else content})
    return messages


def sampled_before(tokenizer: ChatTokenizer, prompt: Sequence[int]) -> tuple[list[int], list[int]]:
    """Splits a ChatML prompt where the policy's turn begins: what came before, and what the turn has so far.

    An engine remembers nothing between two calls, so the prompt alone must say it.
    """
    head = tokenizer.encode("<|im_start|>assistant\n")
    for start in range(len(prompt) - len(head), -1, -1):
        if list(prompt[start : start + len(head)]) == head:
            return list(prompt[: start + len(head)]), list(prompt[start + len(head) :])
    raise AssertionError("a prompt without a turn of the policy")
