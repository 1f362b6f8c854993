"""The programs of examples/trainers/trl_grpo.py and docs/training.md; and TRL's asynchronous loader, over a pool."""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.support.small_model import small_model

from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_rl.logits import token_logprobs
from rolloutpool_trainer import LocalPool, RolloutStream, TransformersSampler, callback_app, serve_callback
from rolloutpool_trainer.adapters.trl import PoolRolloutWorker

torch: Any = pytest.importorskip("torch", reason="torch has an environment of its own: make test-trainers")
pytest.importorskip("trl")

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
# Deprecations inside these libraries are not ours to mend.
pytestmark = pytest.mark.filterwarnings("default")

ROOT = Path(__file__).parents[2]
GROUP = 4


@pytest.mark.timeout(900)
def test_the_example_learns_to_call_its_tool(tmp_path: Path) -> None:
    program = ROOT / "examples" / "trainers" / "trl_grpo.py"
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    rewards = said["rewards"]
    assert len(rewards) == 8
    # Half of what it was shown calls the tool, and only that is rewarded.
    assert sum(rewards[-3:]) / 3 > max(0.65, sum(rewards[:2]) / 2 + 0.05), rewards
    # Tool results are in the completions, and not trained.
    assert said["trained"] > said["left out"] > 0


@pytest.mark.timeout(900)
def test_the_asynchronous_trainer_s_loader_reads_the_pool() -> None:
    """Its own queue reader, batcher and collator. Its forward pass needs FlashAttention, so the model reads rows."""
    from accelerate import PartialState
    from trl.experimental.async_grpo import async_grpo_trainer as theirs

    # TRL's trainer makes one. Its reader logs that it has waited for a second, and without one that is an error.
    PartialState()
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
