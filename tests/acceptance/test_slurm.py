"""The Slurm recipe, with stand-ins for Slurm's commands: a job is preempted, comes back, and nothing is lost.

No Slurm runs here. `srun` starts its command once for each node, on this machine, and does what Slurm's own does with a
SIGTERM: it kills all of them. `scancel --signal=TERM JOB` signals a job's steps, and not its batch script.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.ports import free_port
from tests.support.waiting import eventually

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import TINY, load_tokenizer
from rolloutpool_trainer import RolloutClient, callback_app, serve_callback
from rolloutpool_trainer.local.redis_server import find_server
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

RECIPE = Path(__file__).parents[2] / "deploy" / "slurm" / "rolloutpool.sbatch"
SRUN = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do shift; done
for node in $(seq "$SLURM_NNODES"); do SLURM_NODEID=$((node - 1)) "$@" & tasks+=($!); done
echo "${tasks[@]}" > "$ROLLOUTPOOL_STATE/tasks"
trap 'kill -KILL "${tasks[@]}"' TERM
wait "${tasks[@]}"; wait "${tasks[@]}"
"""
SCANCEL = """#!/bin/bash
[ "$*" = "--signal=TERM $SLURM_JOB_ID" ] && kill -TERM $(cat "$ROLLOUTPOOL_STATE/tasks")
"""
SCONTROL = '#!/bin/bash\necho "$@" >> "$ROLLOUTPOOL_STATE/scontrol"\n'
ROLLOUTS = 24


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """What sbatch gives a job of two nodes, and the folder of our stand-ins."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"srun": SRUN, "scancel": SCANCEL, "scontrol": SCONTROL}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (programs / "redis-server").symlink_to(find_server())
    own = {
        "PATH": f"{programs}:{Path(sys.executable).parent}:/usr/bin:/bin",
        "ROLLOUTPOOL_STATE": str(tmp_path / "state"),
        "ROLLOUTPOOL_HOST": "127.0.0.1",
        "ROLLOUTPOOL_REDIS_PORT": str(free_port()),
        "ROLLOUT_SERVER_PORT": str(free_port()),
        "ROLLOUTPOOL_ALLOWED_TARGETS": "127.0.0.1",
        "ROLLOUTPOOL_TOKENIZERS": TINY,
        "CALCULATOR_DELAY_MS": "600",
        "SLURM_NNODES": "2",
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_JOB_ID": "7",
    }
    kept = {name: os.environ[name] for name in ("HF_HUB_OFFLINE", "PYTHONPATH", "HOME") if name in os.environ}
    return {**kept, **own}


@contextmanager
def job(env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the recipe as the batch step of a job."""
    with (Path(env["ROLLOUTPOOL_STATE"]).parent / "job.log").open("ab") as log:
        batch = subprocess.Popen(["bash", RECIPE], env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            yield batch
        finally:
            if batch.poll() is None:
                batch.terminate()
                try:
                    batch.wait(60)
                except subprocess.TimeoutExpired:
                    os.killpg(batch.pid, signal.SIGKILL)
                    batch.wait()


def client_of(env: dict[str, str]) -> RolloutClient:
    state = Path(env["ROLLOUTPOOL_STATE"])
    eventually(lambda: (state / "url").exists() and (state / "key").exists(), seconds=30)
    return RolloutClient((state / "url").read_text().strip(), (state / "key").read_text().strip(), timeout=60)


def test_bash_can_read_it() -> None:
    assert subprocess.run(["bash", "-n", RECIPE], check=True).returncode == 0


@pytest.mark.slow
def test_a_job_that_is_preempted_comes_back_as_the_same_pool(env: dict[str, str]) -> None:
    tokenizer = load_tokenizer(TINY)
    policy = ScriptedPolicy(tokenizer)
    asked = [{"messages": [{"role": "user", "content": text}]} for text in calculator_prompts(ROLLOUTS, seed=5)]
    defaults = {"tokenizer_name": TINY, "idempotent": True}
    with serve_callback(callback_app(policy, tokenizer=tokenizer), [0]) as trainer:
        with job(env) as batch_step, client_of(env) as client:
            eventually(lambda: len(client.workers()) == 2, seconds=60)
            batch = client.submit(asked, defaults=defaults, trainer=trainer.urls)
            eventually(lambda: batch.status().counts[RolloutStatus.COMPLETED] > 0, seconds=60)
            # Ninety seconds before its time is over.
            batch_step.send_signal(signal.SIGUSR1)
            assert batch_step.wait(90) == 0
        state = Path(env["ROLLOUTPOOL_STATE"])
        assert (state / "scontrol").read_text() == "requeue 7\n"
        assert (state.parent / "job.log").read_text().count("drain ended") == 2
        with job(env) as batch_step, client_of(env) as client:
            results = list(client.batch(batch.batch_id).results())
            assert len({result.uid for result in results}) == len(results) == ROLLOUTS
            assert all(result.status is RolloutStatus.COMPLETED for result in results)
            assert all(result.failure is None for result in results)
            second = subprocess.run(["bash", RECIPE], env=env, capture_output=True, text=True, timeout=30, check=False)
            assert second.returncode == 1
            assert "another job has" in second.stderr
            started = time.monotonic()
            batch_step.terminate()
            assert batch_step.wait(90) == 143
            assert time.monotonic() - started < 60
