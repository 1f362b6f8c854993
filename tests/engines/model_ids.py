"""What an imitated engine samples where a real model stands behind it: a tiny transformer for each version of weights.

The first ids of a turn are sampled from the model. The others are what the scripted policy says, so that rollouts call
tools and have several turns. All of them have the log-probability that the model gives them, computed id by id on a
cache of keys and values, as engines do; a plain forward over a whole sample is another way to the same numbers.

When the weights change in the middle of a call, the cache is computed anew, as SGLang's `retract` does. An engine that
goes on with the old cache (`keep`, `in_place`) samples from a mixture of both, which no forward of one model has.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from typing import Any

import torch
from tests.support.gradual_engine import sampled_before
from tests.support.imitated_engine import CallName
from tests.support.scripted_ids import ScriptedIds
from transformers import Qwen3Config, Qwen3ForCausalLM

from rolloutpool_common.rendering import ChatTokenizer

FREE = 8
"""Ids of each turn that are sampled from the model."""
VOCABULARY = 4096


@cache
def model_of(version: str) -> Any:
    """Makes the model of a version of the weights; the same version has the same weights."""
    torch.manual_seed(int(version))
    # Large weights make large differences, so that a wrong id, place or version cannot be overlooked.
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        initializer_range=0.2,
    )
    model: Any = Qwen3ForCausalLM(config)
    return model.eval()


def plain_logprobs(version: str, ids: list[int]) -> list[float]:
    """Computes the log-probability of each id but the first by one forward, without a cache.

    Args:
        version: Of the weights.
        ids: [T]

    Returns:
        [T - 1], beginning with that of the second id.
    """
    with torch.no_grad():
        logits = model_of(version)(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    scores = logits[:-1].log_softmax(-1)
    found: list[float] = scores.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    return found


class ModelIds:
    """An `IdPolicy` with a model."""

    def __init__(self, tokenizer: ChatTokenizer, *, turns: int) -> None:
        """Takes the rollouts' tokenizer and how many turns they have."""
        assert tokenizer.vocab_size == VOCABULARY
        self._tokenizer = tokenizer
        self._scripted = ScriptedIds(tokenizer, turns=turns)
        self._first_control = min(tokenizer.control_ids)

    def draw(self, named: CallName, prompt: list[int], version: Callable[[], str]) -> Iterator[tuple[int, float]]:
        """See `IdPolicy`."""
        before, done = sampled_before(self._tokenizer, prompt)
        script = self._scripted.whole(named, before).token_ids
        context, past, of = list(prompt), None, ""
        for place in count(len(done)):
            if version() != of:
                of, past = version(), None
            new = context if past is None else context[-1:]
            with torch.no_grad():
                out = model_of(of)(input_ids=torch.tensor([new]), past_key_values=past, use_cache=True)
            past = out.past_key_values
            scores = out.logits[0, -1].log_softmax(-1)
            if place < FREE:
                # A control token would end the turn, or begin another one.
                token = int(torch.multinomial(scores[: self._first_control].exp(), 1))
            else:
                token = script[place - FREE]
            yield token, float(scores[token])
            context.append(token)
