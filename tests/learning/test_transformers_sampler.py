"""Turns that `TransformersSampler` draws: exact log-probabilities, own parameters of each turn, and a pool of them."""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from rolloutpool_common.rendering import TINY, ChatTokenizer, load_tokenizer
from rolloutpool_rl.logits import token_logprobs
from rolloutpool_trainer import GenerateParams, Generation, LocalPool, TransformersSampler, callback_app, serve_callback

torch: Any = pytest.importorskip("torch", reason="torch has an environment of its own: make test-learn")
transformers: Any = pytest.importorskip("transformers")

# Deprecations inside torch are not ours to mend.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

PROMPTS = [[5, 6, 7], [9], [11, 12, 13, 14, 15, 16, 17], [5, 6, 7]]


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return load_tokenizer(TINY)


@pytest.fixture
def model(tokenizer: ChatTokenizer) -> Any:
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.3}
    config = transformers.Qwen3Config(vocab_size=tokenizer.vocab_size, attention_dropout=0.5, **shape, **heads)
    return transformers.Qwen3ForCausalLM(config).eval()


def params(temperature: float = 1.0, most: int = 12, **more: Any) -> GenerateParams:
    known = {"top_p": 1.0, "stop": None, **{name: more.pop(name) for name in ("top_p", "stop") if name in more}}
    plain: dict[str, Any] = {"rollout_id": "r", "turn": 1, "messages": [], "tools": None, "logprobs": True}
    return GenerateParams(**plain, temperature=temperature, max_tokens=most, extra=more, **known)


def logits_of(model: Any, prompt: Sequence[int], turn: Generation) -> Any:
    """The logits of each sampled id, by one plain forward over the sequence alone."""
    with torch.no_grad():
        out = model(torch.tensor([[*prompt, *turn.token_ids]])).logits[0]
    return out[len(prompt) - 1 : -1].float()


def known(model: Any, prompt: Sequence[int], turn: Generation, temperature: float) -> Any:
    return token_logprobs(logits_of(model, prompt, turn), torch.tensor(turn.token_ids), temperature=temperature)


def test_each_turn_of_a_batch_is_as_if_it_were_alone(model: Any, tokenizer: ChatTokenizer) -> None:
    sampler = TransformersSampler(model, tokenizer)
    asked = [params(1.0, 9), params(0.5, 30), params(2.0, 1), params(0.7, 14)]
    turns = sampler.sample(PROMPTS, asked)
    for prompt, how, turn in zip(PROMPTS, asked, turns, strict=True):
        assert 1 <= len(turn.token_ids) == len(turn.logprobs) <= how.max_tokens
        ended = turn.token_ids[-1] in tokenizer.stop_ids
        assert (turn.finish_reason, turn.policy_version) == ("stop" if ended else "length", None)
        assert not tokenizer.stop_ids & set(turn.token_ids[:-1])
        assert (known(model, prompt, turn, how.temperature) - torch.tensor(turn.logprobs)).abs().max() < 1e-4


def test_a_model_without_ids_of_the_tokenizer_is_refused_at_once(model: Any, tokenizer: ChatTokenizer) -> None:
    model.resize_token_embeddings(tokenizer.vocab_size - 1)
    have, want = tokenizer.vocab_size - 1, tokenizer.vocab_size
    with pytest.raises(ValueError, match=f"has {have} ids, and prompts of {TINY} have {want}.*`vocab_size={want}`"):
        TransformersSampler(model, tokenizer)


def test_a_seed_gives_the_same_turn_whatever_is_sampled_beside_it(model: Any, tokenizer: ChatTokenizer) -> None:
    sampler = TransformersSampler(model, tokenizer)
    (alone,) = sampler.sample([PROMPTS[1]], [params(seed=7)])
    beside = sampler.sample(PROMPTS, [params(), params(seed=7), params(seed=8), params()])
    assert beside[1].token_ids == alone.token_ids
    assert sampler.sample([PROMPTS[1]], [params(seed=8)])[0].token_ids != alone.token_ids


def test_without_temperature_it_is_the_likeliest(model: Any, tokenizer: ChatTokenizer) -> None:
    (turn,) = TransformersSampler(model, tokenizer).sample([PROMPTS[0]], [params(0.0)])
    logits = logits_of(model, PROMPTS[0], turn)
    assert logits.argmax(-1).tolist() == turn.token_ids
    assert (known(model, PROMPTS[0], turn, 1.0) - torch.tensor(turn.logprobs)).abs().max() < 1e-4


@pytest.mark.parametrize(
    "how", [{"top_k": 4}, {"top_p": 0.5}, {"top_k": 9, "top_p": 0.7}, {"top_p": 0.0}, {"top_k": -1}]
)
def test_what_is_left_out_is_never_drawn_and_the_rest_adds_up(
    model: Any, tokenizer: ChatTokenizer, how: dict[str, Any]
) -> None:
    count = 400
    turns = TransformersSampler(model, tokenizer).sample([PROMPTS[0]] * count, [params(0.8, 1, **how)] * count)
    logits = logits_of(model, PROMPTS[0], turns[0])[0] / 0.8
    # The same by the book: the k likeliest, and of these the smallest set whose probabilities reach p.
    order = logits.argsort(descending=True)[: how["top_k"] if how.get("top_k", 0) > 0 else None]
    shares = logits[order].softmax(-1)
    size = int((shares.cumsum(-1) < how.get("top_p", 1.0)).sum()) + 1
    allowed = order[:size]
    expected = dict(zip(allowed.tolist(), logits[allowed].log_softmax(-1).tolist(), strict=True))
    for turn in turns:
        assert turn.logprobs[0] == pytest.approx(expected[turn.token_ids[0]], abs=1e-4)


def test_ids_come_as_often_as_their_log_probabilities_say(model: Any, tokenizer: ChatTokenizer) -> None:
    count = 4000
    sampler = TransformersSampler(model, tokenizer)
    turns = sampler.sample([PROMPTS[2]] * count, [params(1.0, 1, top_k=8)] * count)
    drawn = Counter(turn.token_ids[0] for turn in turns)
    expected = {turn.token_ids[0]: count * math.exp(turn.logprobs[0]) for turn in turns}
    assert sum(expected.values()) == pytest.approx(count, rel=1e-3)
    # With 7 degrees of freedom, one in a hundred thousand is above 36.
    assert sum((drawn[token] - number) ** 2 / number for token, number in expected.items()) < 36


def test_a_stop_string_ends_the_turn_with_the_id_that_completes_it(model: Any, tokenizer: ChatTokenizer) -> None:
    sampler = TransformersSampler(model, tokenizer)
    (free,) = sampler.sample([PROMPTS[0]], [params(seed=1, most=20)])
    said = [tokenizer.decode(free.token_ids[: n + 1]) for n in range(len(free.token_ids))]
    stop = said[9][-3:]
    first = next(n for n, text in enumerate(said) if stop in text)
    (turn,) = sampler.sample([PROMPTS[0]], [params(seed=1, most=20, stop=["never", stop, ""])])
    assert (turn.token_ids, turn.finish_reason) == (free.token_ids[: first + 1], "stop")


def test_only_the_last_logits_of_a_prompt_are_computed(model: Any, tokenizer: ChatTokenizer) -> None:
    sizes: list[int] = []
    model.lm_head.register_forward_hook(lambda module, given, out: sizes.append(out.shape[1]))
    TransformersSampler(model, tokenizer).sample([list(range(5, 200))], [params(most=3)])
    assert set(sizes) == {1}


class Plain(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where this is checked
    """A model that takes neither positions nor `logits_to_keep`."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.device = inner, inner.device

    def get_input_embeddings(self) -> Any:
        return self.inner.get_input_embeddings()

    def forward(self, input_ids: Any, attention_mask: Any, past_key_values: Any = None, use_cache: bool = True) -> Any:
        return self.inner(
            input_ids=input_ids, attention_mask=attention_mask, past_key_values=past_key_values, use_cache=use_cache
        )


def test_a_model_that_takes_less_samples_the_same(model: Any, tokenizer: ChatTokenizer) -> None:
    ours, plain = TransformersSampler(model, tokenizer), TransformersSampler(Plain(model), tokenizer)
    how = params(seed=3)
    assert plain.sample([PROMPTS[2]], [how])[0].token_ids == ours.sample([PROMPTS[2]], [how])[0].token_ids


def test_dropout_is_off_while_it_samples_and_then_as_it_was(model: Any, tokenizer: ChatTokenizer) -> None:
    model.train()
    model.model.layers[0].eval()
    before = [module.training for module in model.modules()]
    (turn,) = TransformersSampler(model, tokenizer).sample([PROMPTS[2]], [params()])
    assert [module.training for module in model.modules()] == before
    model.eval()
    assert (known(model, PROMPTS[2], turn, 1.0) - torch.tensor(turn.logprobs)).abs().max() < 1e-4


async def test_a_turn_that_cannot_be_sampled_is_refused_alone(model: Any, tokenizer: ChatTokenizer) -> None:
    sampler = TransformersSampler(model, tokenizer)
    wrong = [
        sampler([10**6], params()),
        sampler([5], params(min_p=0.1)),
        sampler([5], params(top_k="x")),
        sampler([5], params(seed=1.5)),
    ]
    *errors, good = await asyncio.gather(*wrong, sampler([5], params()), return_exceptions=True)
    assert isinstance(good, Generation)
    said = [str(error) for error in errors]
    assert "the prompt has id 1000000, and the model" in said[0]
    assert said[1:] == [
        "sampling_params names min_p; this sampler knows of top_k and seed only",
        "sampling_params has a top_k that is no integer: 'x'",
        "sampling_params has a seed that is no integer: 1.5",
    ]


def test_a_pool_samples_from_it(model: Any, tokenizer: ChatTokenizer) -> None:
    sampler = TransformersSampler(model, tokenizer)
    app = callback_app(sampler, tokenizer=tokenizer, policy_version="4")
    items = [{"messages": [{"role": "user", "content": f"What is {n} + 1?"}]} for n in range(8)]
    defaults = {"tokenizer_name": TINY, "sampling_params": {"max_tokens": 10, "temperature": 0.9}}
    with LocalPool(workers=1, flower=False) as pool, pool.client() as client, serve_callback(app, [0]) as served:
        results = list(client.submit(items, defaults=defaults, trainer=served.urls).results(timeout=60))
    assert len(results) == len(items)
    for result in results:
        (sample,) = result.samples
        assert (result.alignment, sample.version_min, sum(sample.response_mask)) == ("exact", 4, result.response_tokens)
        turn = Generation(token_ids=sample.response_ids, logprobs=sample.response_logprobs)
        assert (known(model, sample.prompt_ids, turn, 0.9) - torch.tensor(turn.logprobs)).abs().max() < 1e-4
