"""A taskset of the calculator for verifiers' env server, and rollouts whose worker is killed while they run.

    python -m benchmarks.peers.adapters.killed_calculator URL ROLLOUTS LATER SECONDS   # with this folder on PYTHONPATH

verifiers finds the taskset by this module's name. Its server has two worker processes, as its own option for a fixed
pool starts them. Printed is a JSON object: what came back of the rollouts that ran when a worker was killed, and of
those that were sent afterwards.
"""

import asyncio
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from in_process_harness import InProcessHarness, RolloutData, tools
from verifiers.v1.serve.client import EnvClient
from verifiers.v1.serve.pool import serve_env

__all__ = ["InProcessHarness", "KilledCalculator"]

WORKERS = 2
BUSY_SECONDS = 1.5
"""From the first request to the kill: each rollout is in its second or third turn then."""
tools.append(
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}},
    }
)


class Calculation(vf.Task[RolloutData, vf.State, vf.TaskConfig]):
    """One rollout; nothing scores it."""


class KilledCalculator(vf.Taskset[Calculation, vf.TasksetConfig]):
    """Its tasks come over the wire, so none is loaded."""

    def load(self) -> Iterable[Calculation]:
        """Part of the protocol."""
        return []


async def main(url: str, rollouts: int, later: int, seconds: float) -> dict[str, int]:
    """Returns counts."""
    spawn = multiprocessing.get_context("spawn")
    said: Any = spawn.Queue()
    name = Path(__file__).stem
    config = {"taskset": {"id": name}, "agent": {"harness": {"id": name}, "runtime": {"type": "subprocess"}}}
    server = spawn.Process(
        target=serve_env,
        kwargs={
            "max_workers": WORKERS,
            "elastic": False,
            "address": "tcp://127.0.0.1:*",
            "address_queue": said,
            "config_data": config,
        },
    )
    server.start()
    client = EnvClient(await asyncio.to_thread(said.get, True, 120))
    await client.wait_for_server_startup()

    async def run(number: int) -> bool:
        prompt = [{"role": "user", "content": "What is 1 + 2?"}]
        data = RolloutData(idx=number, prompt=prompt, rollout_id=f"r{number}", turns=4)
        episode = await client.run(
            vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY"),
            "default",
            vf.SamplingConfig(),
            data.model_dump(mode="json"),
        )
        return all(trace.ok for trace in episode.traces) and bool(episode.traces)

    async def ended(numbers: Iterable[int], *, kill: bool) -> tuple[int, int]:
        tasks = [asyncio.create_task(run(number)) for number in numbers]
        if kill:
            await asyncio.sleep(BUSY_SECONDS)
            os.kill(_workers(server.pid or 0)[0], signal.SIGKILL)
        done, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()
        return sum(task.exception() is None and task.result() for task in done), len(late)

    # One of each worker, so that both are up.
    await asyncio.gather(*(run(-1 - number) for number in range(WORKERS)))
    complete, hang = await ended(range(rollouts), kill=True)
    later_complete, later_hang = await ended(range(rollouts, rollouts + later), kill=False)
    server.terminate()
    return {"complete": complete, "hang": hang, "later, complete": later_complete, "later, hang": later_hang}


def _workers(parent: int) -> list[int]:
    """The env servers below the broker; Python's own helper is no worker."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [pid for pid in map(int, children) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))))
