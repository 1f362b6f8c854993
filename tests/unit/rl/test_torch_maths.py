"""The maths on torch tensors: same numbers, tensors back, and no gradient where the policy sampled nothing."""

from typing import Any

import pytest
from tests.support.golden_numbers import CLOSE, MASKS

from rolloutpool_rl.advantages import gae, gae_batch, group_advantages, rewards_on_actions
from rolloutpool_rl.logits import get_values, response_slice, token_logprobs
from rolloutpool_rl.losses import entropy, kl, policy_loss, value_loss
from rolloutpool_rl.reductions import (
    distributed_whiten,
    masked_whiten,
    sum_of_rollout_mean,
    sum_of_sample_mean,
    sum_of_token,
    token_mean,
)

torch: Any = pytest.importorskip("torch", reason="torch is no dependency: make test-learn runs these")

MASK = [1, 1, 0, 0, 0, 1, 1]
PROMPT, VOCABULARY = 3, 11


def double(values: Any) -> Any:
    return torch.tensor(values, dtype=torch.float64)


def log_probs(logits: Any, tokens: Any) -> Any:
    return logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]


def same(tensor: Any, expected: Any) -> None:
    assert isinstance(tensor, torch.Tensor)
    assert tensor.tolist() == pytest.approx(expected, abs=CLOSE)


def test_golden_numbers() -> None:
    case, sums, white = MASKS["gae"], MASKS["sum_of_sample_mean"], MASKS["masked_whiten"]
    settings = {"gamma": case["gamma"], "lam": case["lam"]}
    rewards, values = double(case["rewards"]), double(case["values"])
    same(gae(rewards, values, **settings)[0], case["vanilla_adv"])
    advantages, returns = gae(rewards, values, torch.tensor(case["mask"]), skip_tool=True, **settings)
    same(advantages, case["skip_adv"])
    same(returns, case["skip_ret"])
    x, masks = double(sums["x"]), [torch.tensor(mask) for mask in sums["loss_masks"]]
    same(sum_of_sample_mean(x, sums["response_lengths"], masks), sums["expected"])
    same(sum_of_sample_mean(x, sums["response_lengths"], masks, sums["with_denoms"]), sums["expected_with_denoms"])
    same(sum_of_token(x, sums["response_lengths"], masks), MASKS["sum_of_token"]["expected"])
    same(masked_whiten(double(white["values"]), torch.tensor(white["mask"])), white["expected"])


def test_losses_equal_those_of_numpy() -> None:
    a, b, c = [-1.0, -0.5, -2.0], [-1.2, -0.9, -1.0], [1.0, -1.0, 0.5]
    mask = [1, 1, 0]
    same(policy_loss(double(a), b, c, mask).loss, policy_loss(a, b, c, mask).loss)
    same(policy_loss(double(a), b, c, mask).clipped, policy_loss(a, b, c, mask).clipped)
    same(value_loss(double(a), b, c, mask).loss, value_loss(a, b, c, mask).loss)
    for estimator in ("k1", "k2", "k3"):
        same(kl(double(a), b, mask, estimator=estimator), kl(a, b, mask, estimator=estimator))
    same(entropy(double([a, b, c]), mask), entropy([a, b, c], mask))
    same(token_mean(double(a), mask), token_mean(a, mask))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_float_type_stays(dtype: str) -> None:
    x = torch.zeros(3, dtype=getattr(torch, dtype))
    mask = torch.tensor([True, False, True])
    assert policy_loss(x, [0.0] * 3, [1.0] * 3, mask).loss.dtype == x.dtype
    assert gae([0.0, 0.0, 1.0], x, mask, gamma=1.0, lam=1.0, skip_tool=True)[0].dtype == x.dtype
    assert rewards_on_actions(x, mask).dtype == x.dtype
    assert masked_whiten(x, mask).dtype == x.dtype


def test_tool_tokens_get_no_direct_gradient() -> None:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(VOCABULARY, (PROMPT + len(MASK),), generator=generator)
    logits = torch.randn(len(tokens), VOCABULARY, generator=generator, dtype=torch.float64, requires_grad=True)
    values = torch.randn(len(tokens), generator=generator, dtype=torch.float64, requires_grad=True)
    place = response_slice(len(tokens), len(MASK))
    new = log_probs(logits[place], tokens[PROMPT:])
    rewards = [0.0] * (len(MASK) - 1) + [1.0]
    advantages, returns = gae(rewards, values[place].detach(), MASK, gamma=0.99, lam=0.95, skip_tool=True)
    policy = policy_loss(new, new.detach() + 0.05, masked_whiten(advantages, MASK), MASK)
    critic = value_loss(values[place], values[place].detach() + 0.1, returns, MASK)
    parts = (
        policy.loss
        + 0.5 * critic.loss
        + 0.1 * kl(new, new.detach() - 0.2, MASK, estimator="k3")
        - 0.01 * entropy(logits[place], MASK)
    )
    sum_of_sample_mean(parts, [len(MASK)], [MASK]).backward()
    flows = [bool(row.any()) for row in logits.grad]
    expected = [False] * (PROMPT - 1) + [bool(m) for m in MASK] + [False]
    assert flows == expected
    assert [bool(value) for value in values.grad] == expected
    assert torch.isfinite(logits.grad).all()


def test_infinite_log_probs_at_tool_tokens_do_not_poison_the_gradient() -> None:
    new = torch.tensor([-1.0, -float("inf"), -2.0], requires_grad=True)
    policy_loss(new, [-1.1, 0.0, -2.0], [1.0, 1.0, 1.0], [1, 0, 1]).loss.sum().backward()
    assert new.grad[1] == 0
    assert torch.isfinite(new.grad).all()


def test_forbidden_tokens_do_not_poison_the_entropy_gradient() -> None:
    logits = torch.tensor([[0.0, 1.0, -float("inf")]], requires_grad=True)
    entropy(logits, [1]).sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 0] != 0


def test_gae_lets_gradients_through_to_values() -> None:
    values = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    advantages, _ = gae([0.0, 0.0, 0.0, 1.0], values, [1, 0, 1, 1], gamma=1.0, lam=0.0, skip_tool=True)
    advantages[0].backward()
    assert values.grad.tolist() == [-1.0, 0.0, 1.0, 0.0]


def test_groups_and_batches_are_as_in_numpy() -> None:
    rewards, groups = [1.0, 0.0, 0.5, 2.0, 2.0], ["a", "a", "b", "b", "c"]
    same(group_advantages(double(rewards), groups), group_advantages(rewards, groups).tolist())
    table, values, mask = [[0.0, 0.0, 1.0], [0.0, 2.0, 0.0]], [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], [[1, 0, 1], [1, 1, 0]]
    options: Any = {"gamma": 0.99, "lam": 0.95, "skip_tool": True}
    found = gae_batch(double(table), double(values), torch.tensor(mask), **options)
    for tensor, expected in zip(found, gae_batch(table, values, mask, **options), strict=True):
        assert isinstance(tensor, torch.Tensor)
        assert tensor.flatten().tolist() == pytest.approx(expected.ravel().tolist(), abs=CLOSE)
    x, lengths, masks, rollouts = [1.0, 2.0, 3.0, 4.0], [2, 2], [[1, 0], [1, 1]], ["r", "r"]
    same(sum_of_rollout_mean(double(x), lengths, masks, rollouts), sum_of_rollout_mean(x, lengths, masks, rollouts))


def test_whitening_takes_a_reduce_that_changes_tensors_in_place() -> None:
    def all_reduce(sums: Any) -> Any:
        # As with one other process that holds the same values.
        sums *= 2
        return sums

    values = double([1.0, 2.0, 4.0, 9.0])
    got = distributed_whiten(values, [1, 1, 1, 0], all_reduce)
    twice = masked_whiten(torch.cat([values, values]), [1, 1, 1, 0] * 2)[:4]
    same(got, twice.tolist())


def test_values_of_a_critic_keep_their_gradients() -> None:
    outputs = torch.arange(7.0, requires_grad=True)
    first, second = get_values(outputs[:, None], [4, 3], [2, 1])
    assert [first.tolist(), second.tolist()] == [[1.0, 2.0], [5.0]]
    (first.sum() + second.sum()).backward()
    assert outputs.grad.tolist() == [0, 1, 1, 0, 0, 1, 0]


def test_log_probabilities_of_a_large_vocabulary_are_close_in_float32() -> None:
    logits = torch.randn(2, 3, 152_000, generator=torch.Generator().manual_seed(1)) * 4
    ids = torch.tensor([[0, 5, 151_999], [7, 70_000, 3]])
    exact = token_logprobs(logits.double(), ids)
    assert (token_logprobs(logits, ids) - exact).abs().max() < 5e-6
    half = logits.bfloat16()
    assert token_logprobs(half, ids).dtype == torch.float32
    assert torch.equal(token_logprobs(half, ids), token_logprobs(half.float(), ids))
