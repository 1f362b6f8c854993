"""A model of one layer, trained on CPU by TRL's own GRPOTrainer through a pool; and the program of docs/training.md."""

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_rl.logits import token_logprobs
from rolloutpool_trainer import LocalPool, RolloutStream, TransformersSampler, callback_app, serve_callback
from rolloutpool_trainer.adapters.driver import PoolDriver
from rolloutpool_trainer.adapters.trl import PoolRolloutWorker, rollout_func

torch: Any = pytest.importorskip("torch", reason="torch has an environment of its own: make test-trainers")
trl: Any = pytest.importorskip("trl")

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
# Deprecations inside these libraries are not ours to mend.
pytestmark = pytest.mark.filterwarnings("default")

ROOT = Path(__file__).parents[2]
STEPS, GROUP = 2, 4


def small_model(vocabulary: int) -> Any:
    """A transformer of one layer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
    )
    return Qwen3ForCausalLM(config)


@pytest.mark.timeout(900)
def test_trl_trains_through_the_pool(tmp_path: Path) -> None:
    from datasets import Dataset
    from transformers import AutoTokenizer

    tokenizer = load_tokenizer(str(TINY_TOKENIZER))
    model = small_model(tokenizer.vocab_size)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    sampler = TransformersSampler(model, tokenizer)
    calls: list[dict[str, list[Any]]] = []

    def reward(completions: list[Any], **columns: Any) -> list[float]:
        # Different for each rollout, so that there is something to learn.
        assert len(columns["rollout_uid"]) == len(columns["transcript"]) == len(completions)
        return [float(number) for number in range(len(completions))]

    questions = [f"How much is {n} + 1?" for n in range(STEPS)]
    rows = [{"prompt": [{"role": "user", "content": question}]} for question in questions]
    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=GROUP,
        num_generations=GROUP,
        max_completion_length=8,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        bf16=False,
    )
    with LocalPool(workers=1, flower=False) as pool:
        app = callback_app(sampler, tokenizer=tokenizer)
        with serve_callback(app, [0]) as served:
            driver = PoolDriver(pool.url, trainer=served.urls, defaults={"tokenizer_name": str(TINY_TOKENIZER)})
            through_pool = rollout_func(driver)

            def watched(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
                columns = through_pool(prompts, trainer)
                calls.append(columns)
                return columns

            trainer = trl.GRPOTrainer(
                model=model,
                args=arguments,
                reward_funcs=[reward],
                train_dataset=Dataset.from_list(rows),
                processing_class=AutoTokenizer.from_pretrained(TINY_TOKENIZER),
                rollout_func=watched,
            )
            trainer.train()
    assert trainer.state.global_step == STEPS
    assert [len(columns["completion_ids"]) for columns in calls] == [GROUP] * STEPS
    for columns in calls:
        for session_ids, mask in zip(columns["completion_ids"], columns["env_mask"], strict=True):
            assert len(session_ids) == len(mask)
            assert all(mask)
    after = list(model.parameters())
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True)), "nothing was trained"
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == STEPS
    assert len(app.sampling_log) == STEPS * GROUP


@pytest.mark.timeout(900)
def test_the_asynchronous_trainer_s_loader_reads_the_pool() -> None:
    """Its own queue reader, batcher and collator. Its forward pass needs FlashAttention, so the model reads rows."""
    from trl.experimental.async_grpo import async_grpo_trainer as theirs

    tokenizer = load_tokenizer(str(TINY_TOKENIZER))
    assert tokenizer.close_id is not None
    model = small_model(tokenizer.vocab_size).eval()
    sampler = TransformersSampler(model, tokenizer)
    prompts = [
        [{"group": str(n), "n": GROUP, "messages": [{"role": "user", "content": f"How much is {n} + 1?"}]}]
        for n in range(2)
    ]
    with LocalPool(workers=1, flower=False) as pool, pool.client() as client:
        app = callback_app(sampler, tokenizer=tokenizer)
        with serve_callback(app, [0]) as served:
            defaults = {"tokenizer_name": str(TINY_TOKENIZER), "sampling_params": {"max_tokens": 8}}
            stream = RolloutStream(client, prompts, trainer=served.urls, defaults=defaults)
            worker = PoolRolloutWorker(stream, lambda rollout: float(rollout.index))
            metrics: dict[str, list[Any]] = defaultdict(list)
            reader = theirs.RolloutQueueDataset(worker.rollout_buffer, lambda: 0, worker.check_health, 60.0, metrics)
            worker.start()
            (rows,) = next(iter(theirs.FixedCountBatcher(reader, 1, GROUP)))
            worker.stop()
    batch = theirs.DataCollatorForRollout(pad_token_id=tokenizer.close_id, metrics=metrics)([[rows]])
    samples = rows.samples
    assert len(samples) == GROUP
    assert {sample["group_id"] for sample in samples} == {0}
    assert batch["token_index"].numel() == sum(int(sample["completion_mask"].sum()) for sample in samples) > 0
    assert metrics["reward"]
    # What it calls the sampler's log-probability of a token is that of the model, at that token.
    worst = 0.0
    for sample in samples:
        ids = torch.tensor(sample["input_ids"])[None]
        with torch.no_grad():
            known = token_logprobs(model(ids).logits[:, :-1], ids[:, 1:])[0]
        trained = torch.tensor(sample["completion_mask"])[1:] == 1
        worst = max(worst, (known - torch.tensor(sample["old_log_probs"])[1:])[trained].abs().max().item())
    assert worst < 1e-4


@pytest.mark.timeout(900)
def test_the_program_of_the_document_trains(tmp_path: Path) -> None:
    section = (ROOT / "docs" / "training.md").read_text().partition("\n## A training loop\n")[2].partition("\n### ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    code = "\n".join(blocks)
    assert len(code.splitlines()) < 80
    program = tmp_path / "program.py"
    program.write_text(code)
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    drifts = [float(number) for number in re.findall(r"drift ([0-9.e+-]+)", done.stdout)]
    assert len(drifts) == 6
    rewards = [float(number) for number in re.findall(r"reward ([0-9.]+)", done.stdout)]
    assert sum(rewards) > 0, "nothing was rewarded, so nothing was learnt"
    # The first group was sampled by the very weights that it trains.
    assert drifts[0] < 1e-4
