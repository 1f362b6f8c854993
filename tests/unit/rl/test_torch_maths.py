"""The maths on torch tensors: same numbers, tensors back, and no gradient where the policy sampled nothing."""

from typing import Any

import pytest
from tests.support.golden_numbers import CLOSE, MASKS

from rolloutpool_rl.advantages import gae, rewards_on_actions
from rolloutpool_rl.logits import response_slice
from rolloutpool_rl.losses import entropy, kl, policy_loss, value_loss
from rolloutpool_rl.reductions import masked_whiten, sum_of_sample_mean, sum_of_token, token_mean

torch: Any = pytest.importorskip("torch", reason="torch is no dependency: pip install torch, to run these")

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
