"""Our rows in the real types of TRL and Tinker, and the maths on torch: `make test-trainers`."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.exported_rollouts import FORKED, PLAIN

from rolloutpool_rl.export import tinker_data, trl_async_samples
from rolloutpool_rl.logits import token_logprobs
from rolloutpool_rl.padded_batch import padded_batch
from rolloutpool_trainer.adapters.trl import PoolRolloutWorker

torch: Any = pytest.importorskip("torch", reason="torch has an environment of its own: make test-trainers")
pytest.importorskip("trl")
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
# Deprecations inside these libraries are not ours to mend.
pytestmark = pytest.mark.filterwarnings("default")


def test_trl_takes_our_samples() -> None:
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    samples = [RolloutSample(**row) for row in trl_async_samples(FORKED, 0.5, group_id=1, metrics={"reward": 1.0})]
    assert [sample.input_ids.tolist() for sample in samples] == [[1, 2, 100, 101], [1, 2, 9, 9, 9, 100, 101, 102, 103]]
    assert all(sample.enqueued_at is None for sample in samples)


def test_our_worker_is_what_trl_asks_for() -> None:
    from trl.experimental.async_grpo.async_grpo_trainer import RolloutWorkerProtocol

    names = {name for name in vars(RolloutWorkerProtocol) if not name.startswith("_")}
    names |= set(RolloutWorkerProtocol.__annotations__)
    worker = PoolRolloutWorker([], lambda rollout: 0.0)  # type: ignore[arg-type]
    assert names
    assert [name for name in names if not hasattr(worker, name)] == []


def test_tinker_takes_our_data() -> None:
    import tinker

    (row,) = tinker_data(PLAIN, 2.0)
    model_input = tinker.ModelInput.from_ints(row["model_input"])
    datum = tinker.Datum(model_input=model_input, loss_fn_inputs=row["loss_fn_inputs"])
    assert datum.model_input.to_ints() == [1, 2, 3, 100, 101, 102, 103, 104]
    assert datum.loss_fn_inputs["target_tokens"].tolist() == [2, 3, 100, 101, 102, 103, 104, 105]
    assert datum.loss_fn_inputs["advantages"].tolist() == [0, 0, 2, 2, 0, 0, 0, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_are_torchs(dtype: Any) -> None:
    logits = (torch.randn(2, 7, 300, generator=torch.Generator().manual_seed(1)) * 5).to(dtype).requires_grad_()
    ids = torch.randint(300, (2, 7), generator=torch.Generator().manual_seed(2))
    got = token_logprobs(logits, ids, temperature=0.7)
    expected = torch.log_softmax(logits.float() / 0.7, -1).gather(-1, ids[..., None])[..., 0]
    assert got.dtype == torch.float32
    assert torch.allclose(got, expected, atol=1e-5)
    got.sum().backward()
    assert logits.grad is not None
    exact = token_logprobs(logits.detach().double().numpy(), ids.numpy(), temperature=0.7)
    assert np.allclose(got.detach().numpy(), exact, atol=1e-5)


def test_the_float32_trap_is_where_the_docstring_says() -> None:
    """A 3-D cross-entropy is several times less exact than the last axis; against float64."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 32, 151_936, generator=generator)
    ids = logits.softmax(-1).view(-1, 151_936).multinomial(1, generator=generator).view(1, 32)
    exact = logits.double().log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    trap = -torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids, reduction="none")
    ours = token_logprobs(logits, ids)
    assert (ours - exact).abs().max() < 3e-6
    assert (trap - exact).abs().max() > 2 * (ours - exact).abs().max()


def test_a_batch_becomes_tensors_on_a_device() -> None:
    tensors = padded_batch([PLAIN, FORKED], [0.5, 1.0], advantages=[1.0, -1.0], pad_id=0).to_torch("cpu")
    assert {tensor.shape[0] for tensor in tensors.values()} == {3}
    assert tensors["advantages"].dtype == torch.float32


def test_the_tests_that_need_torch_run_here() -> None:
    """The default environment has no torch, so its tests of tensors are skipped there."""
    root = Path(__file__).parents[2]
    files = [str(root / "tests" / "unit" / "rl" / name) for name in ("test_torch_maths.py", "test_padded_batch.py")]
    assert pytest.main(["--noconftest", "-q", "-p", "no:cacheprovider", *files]) == 0
