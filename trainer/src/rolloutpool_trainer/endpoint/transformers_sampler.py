"""Samples turns from a transformers model of this process.

    sampler = TransformersSampler(model, tokenizer)
    app = callback_app(sampler, tokenizer=tokenizer, tools=pool.url, policy_version="0")

1. Turns that wait at the same time are sampled together (`batched`). Each keeps its own temperature, `top_k`, `top_p`,
   `max_tokens`, stop strings and seed.
2. Prompts are padded on the left. One forward pass reads them, and one more follows for each token, with the cache of
   keys and values. Where the model can (`logits_to_keep`), only the last logits are computed: those of a long prompt
   take more memory than the model.
3. A turn ends with a stop id of the tokenizer, which is kept, with the id that completes a stop string, or with its
   `max_tokens`.
4. A log-probability is that of the distribution which was sampled from: after temperature, `top_k` and `top_p`. At
   temperature 0 it is that of temperature 1.

The model is in evaluation mode while it samples, because dropout would change the log-probabilities. Update its weights
in `stream.update(app)`, or between `app.pause()` and `app.resume()`.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.batching import batched
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.errors import MissingExtra, TurnRefused

_KNOWN = {"seed", "top_k"}
"""Parameters beyond those of the protocol."""
_IDS_PER_CHARACTER = 4
"""At most, where each byte is an id."""


class TransformersSampler:
    """The policy of a `callback_app`, over a causal language model of transformers."""

    def __init__(self, model: Any, tokenizer: ChatTokenizer, *, most: int = 64, wait: float = 0.02) -> None:
        """Samples nothing yet.

        Args:
            model: As `AutoModelForCausalLM.from_pretrained` gives it, on any one device.
            tokenizer: The model's own, as `load_tokenizer` gives it.
            most: Most turns in one batch.
            wait: Seconds for which a turn waits for others.

        Raises:
            MissingExtra: torch is not installed.
            ValueError: The model lacks ids of the tokenizer, `most` is below 1, or `wait` below 0.
        """
        try:
            import torch
        except ModuleNotFoundError as error:
            raise MissingExtra.needed("TransformersSampler", "torch", "pip install -e 'trainer[torch]'") from error
        self._torch = torch
        self._model, self._tokenizer = model, tokenizer
        # At each turn it would be asked again, for each rollout. transformers' `vocab_size` leaves added tokens out.
        if (size := self._size()) < (wanted := tokenizer.prompt_vocab_size):
            raise ValueError(
                f"the model has {size} ids, and prompts of {tokenizer.name} have {wanted}, added tokens included: is "
                f"it the model's own tokenizer? A config of yours takes `vocab_size={tokenizer.vocab_size}`"
            )
        taken = inspect.signature(model.forward).parameters
        self._fewer_logits = {"logits_to_keep": 1} if "logits_to_keep" in taken else {}
        self._takes_positions = "position_ids" in taken
        # transformers 5.24 has another name for it, and warns of this one.
        self._cache = "cache" if "cache" in taken else "past_key_values"
        self._together = batched(self.sample, most=most, wait=wait)

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        """Samples one turn, together with those that wait at the same time.

        Args:
            prompt_ids: [P].
            params: How to sample; of `extra`, `top_k` and `seed` are known.

        Raises:
            TurnRefused: The model has no such id, or a parameter is not known. Other turns are not touched by that.
        """
        self._check(prompt_ids, params)
        return await self._together(prompt_ids, params)

    def sample(self, prompts: Sequence[Sequence[int]], params: Sequence[GenerateParams]) -> list[Generation]:
        """Samples one turn for each prompt, in one batch.

        Args:
            prompts: B lists [P], of any lengths.
            params: B, how to sample each.

        Returns:
            B generations, whose policy version is the endpoint's.

        Raises:
            TurnRefused: As for one turn.
        """
        for prompt, one in zip(prompts, params, strict=True):
            self._check(prompt, one)
        torch, device = self._torch, self._model.device
        turns = [_SampledTurn(one, self._tokenizer) for one in params]
        longest = max(map(len, prompts))
        # Padding is masked out, so any id does.
        ids = torch.tensor([[0] * (longest - len(one)) + list(one) for one in prompts], device=device)
        attention = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts], device=device)
        draw, past = _Draw(torch, params, device), None
        with torch.no_grad(), _evaluating(self._model):
            while True:
                logits, past = self._forward(ids, attention, past)
                chosen, logprobs = draw.one(logits)
                for turn, token, logprob in zip(turns, chosen.tolist(), logprobs.tolist(), strict=True):
                    turn.add(token, logprob)
                if all(turn.reason is not None for turn in turns):
                    return [turn.generation() for turn in turns]
                ids = chosen[:, None]
                attention = torch.cat([attention, torch.ones_like(ids)], 1)

    def _forward(self, ids: Any, attention: Any, past: Any) -> tuple[Any, Any]:
        """Computes the logits [B, V] that follow `ids` [B, T], as float32, and the cache of all so far."""
        positions = {}
        if self._takes_positions:
            positions["position_ids"] = (attention.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = self._model(
            input_ids=ids,
            attention_mask=attention,
            use_cache=True,
            **{self._cache: past},
            **positions,
            **self._fewer_logits,
        )
        return out.logits[:, -1].float(), getattr(out, self._cache)

    def _size(self) -> int:
        return int(self._model.get_input_embeddings().weight.shape[0])

    def _check(self, prompt: Sequence[int], params: GenerateParams) -> None:
        # On a GPU, an id that the model lacks would end the process.
        if max(prompt) >= (size := self._size()):
            raise TurnRefused(f"the prompt has id {max(prompt)}, and the model {size} ids; is the tokenizer its own?")
        if wrong := [name for name in _KNOWN & params.extra.keys() if not isinstance(params.extra[name], int | None)]:
            raise TurnRefused(f"sampling_params has a {wrong[0]} that is no integer: {params.extra[wrong[0]]!r}")
        if unknown := sorted(params.extra.keys() - _KNOWN):
            raise TurnRefused(f"sampling_params names {', '.join(unknown)}; this sampler knows of top_k and seed only")


@dataclass
class _SampledTurn:
    """What was sampled of a turn so far."""

    params: GenerateParams
    tokenizer: ChatTokenizer
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: Any = None
    """Why it has ended; None while it goes on."""

    def add(self, token: int, logprob: float) -> None:
        """Adds what was sampled next; what comes after the end is not the turn's."""
        if self.reason is not None:
            return
        self.ids.append(token)
        self.logprobs.append(logprob)
        if token in self.tokenizer.stop_ids or self._says_stop():
            self.reason = "stop"
        elif len(self.ids) >= self.params.max_tokens:
            self.reason = "length"

    def generation(self) -> Generation:
        """The turn, once it has ended."""
        return Generation(token_ids=self.ids, logprobs=self.logprobs, finish_reason=self.reason)

    def _says_stop(self) -> bool:
        stops = [stop for stop in self.params.stop or () if stop]
        if not stops:
            return False
        # One that has ended before this id would have ended the turn; so it must reach into the last ids.
        longest = max(map(len, stops))
        said = self.tokenizer.decode(self.ids[-(longest + 1) * _IDS_PER_CHARACTER :])
        return any(stop in said for stop in stops)


class _Draw:
    """Draws one id for each row of logits, as the parameters of its turn say."""

    def __init__(self, torch: Any, params: Sequence[GenerateParams], device: Any) -> None:
        self._torch = torch
        heats = torch.tensor([[one.temperature] for one in params], device=device)
        self._greedy = heats == 0
        self._heats = heats.masked_fill(self._greedy, 1.0)
        seeds = {row: one.extra["seed"] for row, one in enumerate(params) if one.extra.get("seed") is not None}
        self._generators = {row: torch.Generator(device).manual_seed(seed) for row, seed in seeds.items()}
        # 0 and -1 are how engines write that there is no limit.
        kept = [one.extra.get("top_k") or 0 for one in params]
        self._top_k = torch.tensor([[k if k > 0 else 2**31] for k in kept], device=device)
        self._top_p = torch.tensor([[one.top_p if one.top_p < 1 else torch.inf] for one in params], device=device)
        self._shaped = any(k > 0 for k in kept) or any(one.top_p < 1 for one in params)

    def one(self, logits: Any) -> tuple[Any, Any]:
        """Draws ids [B] from logits [B, V]; returns them with their log-probabilities [B]."""
        logits = logits / self._heats
        if self._shaped:
            logits = self._cut(logits)
        logprobs = logits.log_softmax(-1)
        noise = self._torch.empty_like(logprobs).exponential_()
        for row, generator in self._generators.items():
            noise[row].exponential_(generator=generator)
        # The largest of p / Exp(1) is a fair draw from p.
        scores = logprobs - noise.clamp(min=1e-30).log().masked_fill(self._greedy, 0.0)
        chosen = scores.argmax(-1)
        return chosen, logprobs.gather(-1, chosen[:, None])[:, 0]

    def _cut(self, logits: Any) -> Any:
        """Takes ids out that `top_k` or `top_p` leave out; the likeliest one always stays."""
        torch = self._torch
        ordered, order = logits.sort(-1, descending=True)
        place = torch.arange(logits.shape[-1], device=logits.device)
        ordered = ordered.masked_fill(place >= self._top_k, -torch.inf)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        ordered = ordered.masked_fill((before >= self._top_p) & (place > 0), -torch.inf)
        return torch.empty_like(logits).scatter_(-1, order, ordered)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Puts the model into evaluation mode for a block, and what was in training mode back into it."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
