"""`python -m tests.chaos.stops --times 100 [--longest 60] [--notice 90]`: scale-in, at any moment of a worker's life.

A parent with two workers is started beside work that waits, and gets SIGTERM between 0.1 s and a minute later: while
its fork server imports, while a worker is forked, while it loads, announces itself, or runs. Some are stopped side by
side. Who is still there when the notice is over is killed, as spot machines and Kubernetes do; workers are told to
drain in ten seconds less. Then a pool finishes what is left. Exit code 1 if a rollout was lost or counted a crash, a
worker was declared dead, a parent ended otherwise than well, left a process or wrote a traceback.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import redis
from tests.chaos.sockets import family
from tests.support.processes import runs

from rolloutpool_common.rendering import TINY, load_tokenizer
from rolloutpool_trainer import LocalPool, RolloutClient, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

AT_ONCE = 3
IN_FLIGHT = 60
FED_EVERY = 4
"""Stops, so that most workers that run have something in hand."""
LATENCY = 2.0
NOTICE = 90.0
SPARE = 10.0
"""Of the notice, for what comes behind the drain: the last records, and the ends of processes."""


@dataclass
class Stop:
    """One parent, and how it ended."""

    after: float
    code: int
    left: int
    """Processes that were there when it had ended."""
    faults: list[str]
    """Lines of its log that begin a traceback, or say that something went wrong."""

    @property
    def clean(self) -> bool:
        """Whether it ended well. By the signal itself ends a parent that has not installed its handler yet."""
        return self.code in (0, -signal.SIGTERM) and not self.left and not self.faults


def stop_one(env: dict[str, str], folder: Path, number: int, after: float, notice: float) -> Stop:
    """Starts a parent, stops it, and looks at what it left."""
    log = folder / f"parent-{number}.log"
    with log.open("wb") as output:
        parent = subprocess.Popen(
            [sys.executable, "-m", "rolloutpool_worker", "--processes", "2"],
            env={**os.environ, **env},
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        time.sleep(after)
        members = set(family(parent.pid))
        parent.terminate()
        # A worker may be forked in just this moment.
        members |= set(family(parent.pid))
        try:
            code = parent.wait(notice)
        except subprocess.TimeoutExpired:
            for pid in {parent.pid, *members}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            code = 1000
        time.sleep(0.2)
        left = [pid for pid in members - {parent.pid} if runs(pid)]
    text = log.read_text(errors="replace")
    return Stop(
        after, code, len(left), [line for line in text.splitlines() if "Traceback" in line or "exception" in line]
    )


def feed(client: RolloutClient, url: str, submitted: list[str]) -> None:
    """Keeps some rollouts open."""
    items = [{"messages": [{"role": "user", "content": f"Calculate {n} + 2"}]} for n in range(IN_FLIGHT)]
    batch = client.submit(items, defaults={"tokenizer_name": TINY, "max_turns": 4}, trainer=url)
    submitted.append(batch.batch_id)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.stops")
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--longest", type=float, default=60.0, help="seconds before a stop, at most")
    parser.add_argument("--notice", type=float, default=NOTICE, help="seconds from SIGTERM to SIGKILL")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    # Most of what can go wrong lies in the first seconds, so short times come more often.
    delays = [0.1 * (arguments.longest / 0.1) ** rng.random() for _ in range(arguments.times)]
    tokenizer, submitted = load_tokenizer(TINY), list[str]()
    app = callback_app(ScriptedPolicy(tokenizer, latency=LATENCY), tokenizer=tokenizer)
    with (
        tempfile.TemporaryDirectory(prefix="rolloutpool-stops-") as temporary,
        LocalPool(workers=0, flower=False) as pool,
        serve_callback(app, [0]) as served,
        pool.client() as client,
        ThreadPoolExecutor(AT_ONCE) as threads,
    ):
        env = {"ROLLOUTPOOL_REDIS_URL": pool.redis_url, "ROLLOUTPOOL_SECRETS_FILE": str(pool.secrets_file)}
        env["ROLLOUTPOOL_DRAIN_SECONDS"] = str(min(max(arguments.notice - SPARE, 0.0), 30.0))
        stops = []
        for number, after in enumerate(delays):
            if number % FED_EVERY == 0:
                feed(client, served.url, submitted)
            stops.append(threads.submit(stop_one, env, Path(temporary), number, after, arguments.notice))
        ends = [stop.result() for stop in stops]
        pool.add_worker()
        results = [result for batch_id in submitted for result in client.batch(batch_id).results()]
        with redis.Redis.from_url(pool.redis_url, decode_responses=True) as raw:
            totals = raw.hgetall("rp:totals")
        said = (pool.state.logs / "api.log").read_text(errors="replace").splitlines()
        deaths = [line for line in said if "is dead" in line]
    incomplete = sum(result.status != "completed" for result in results)
    lost = IN_FLIGHT * len(submitted) - len(results) + incomplete
    crashes = sum(int(totals.get(f"requeued:{reason}", 0)) for reason in ("crashes", "deaths"))
    dead, unclean = int(totals.get("workers_lost", 0)), [vars(end) for end in ends if not end.clean]
    counts = {
        "stopped": len(ends),
        "stopped before it had a handler": sum(end.code == -signal.SIGTERM for end in ends),
        "rollouts": len(results),
        "workers that ended some": len({result.worker for result in results}),
        "lost or not completed": lost,
        "crashes": crashes,
        "declared dead": dead,
        "deaths": deaths,
        "given back by drains": int(totals.get("requeued:drains", 0)),
        "not clean": unclean,
    }
    print(json.dumps(counts, indent=1))
    return int(bool(lost or crashes or dead or unclean))


if __name__ == "__main__":
    sys.exit(main())
