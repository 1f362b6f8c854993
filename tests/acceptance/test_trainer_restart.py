"""A trainer is killed again and again, and goes on from its checkpoints: nothing is lost, and nothing trained twice."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

from tests.support.killed_trainer import BATCHES, GROUPS, RUN, SIZE, STEP
from tests.support.neighbouring_ports import free_base_port

from rolloutpool_trainer import LocalPool, RolloutClient

KILLS = 2


def test_a_killed_trainer_goes_on_from_its_checkpoint(pool: LocalPool, client: RolloutClient, tmp_path: Path) -> None:
    checkpoint, port, chance = tmp_path / "checkpoint.json", free_base_port(1), random.Random(1)
    command = [sys.executable, "-m", "tests.support.killed_trainer", pool.url, str(port), str(checkpoint)]
    steps = []
    for kill in range(KILLS + 1):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
            assert trainer.stdout is not None
            assert trainer.stdout.readline() == "begun\n"
            if kill < KILLS:
                # The first time before its first step, then somewhere in the second one of its life.
                if kill:
                    assert trainer.stdout.readline() == "trained\n"
                time.sleep(chance.uniform(0.0, 0.2))
                trainer.kill()
            else:
                assert trainer.wait(60) == 0
        steps.append(len(json.loads(checkpoint.read_text())["trained"]))
    final = json.loads(checkpoint.read_text())
    trained = [group for step in final["trained"] for group in step]
    # Of three groups of a batch two are kept, one of them when it was sampled again.
    assert sorted(name for name, _ in trained) == sorted(f"{n}-{place}" for n in range(BATCHES) for place in (0, 2))
    uids = [uid for _, group in trained for uid in group]
    assert len(set(uids)) == len(uids) == BATCHES * 2 * SIZE
    assert {len(step) for step in final["trained"][:-1]} == {STEP}
    assert final["stream"]["version"] == len(final["trained"]) == -(-BATCHES * 2 // STEP)
    # It was killed in the middle, and what was in flight then was not submitted twice: batches, and two refills each.
    assert 0 == steps[0] < steps[1] < steps[2]
    assert len(client.batches(run=RUN)) == BATCHES * (1 + 2)
    assert GROUPS == 3
    for summary in client.batches(run=RUN):
        statistics = client.batch(summary.batch_id).group_statistics()
        assert {(one.group, one.mean) for one in statistics if one.annotated} <= {
            (name, 0.5) for name, group in trained if group[0].startswith(summary.batch_id)
        }
