"""`python -m tests.chaos.agents --kills 100`: programs that call their model, while all around them is killed.

Programs with the habits of an SDK (two repetitions, after 0.5 and 1 s) talk through a balancer to two doors. Some run
here, some are started by a runner. Meanwhile doors, workers, Redis, the runner and programs are killed (`SIGKILL`), one
at a time, and ordinary rollouts run beside them. Then the judge compares what was delivered with what the policies
themselves have sampled, and with nothing that the pool says of itself:

1. Each session ends, and no program here sees an error that outlasts its repetitions.
2. Each sampled token is in one sample, or in the counts of what was left out.
3. Over a callback that answers repeated turns from memory, nothing is sampled twice. Over an engine, what was sampled
   twice is in one sample, and its turn says `resampled`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
from tests.chaos.sockets import family
from tests.support.harness import Program, sampled
from tests.support.imitated_engine import Answer, logprob_of
from tests.support.ports import free_port
from tests.support.vllm_server import vllm_server

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import TINY, ChatTokenizer, load_tokenizer
from rolloutpool_trainer import AsyncRolloutClient, LocalPool, callback_app
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.errors import ClientError
from rolloutpool_worker.tools import TOOLS

AT_ONCE = 12
ROUNDS = (2, 3, 5)
PLAIN = 4
"""Ordinary rollouts of a batch."""
PAUSE_SECONDS = (0.5, 1.0)
"""Before each repetition, as OpenAI's SDK makes them."""
VICTIMS = ("door", "worker", "redis", "runner", "program")
LONGEST = 240.0
SPARED = {"door": 5.0, "redis": 30.0}
"""Seconds between two kills.

Behind a balancer a door is left that answers; a call that was held by two doors in a row, while there was no worker to
answer it, can't be repeated a third time. Redis is started again after up to 15 s; with more kills it is hardly there.
"""
PROGRAM = Path(__file__).parents[1] / "support" / "small_program.py"


class CountedPolicy:
    """Makes as many calls as the prompt says, each with a number of its own, so that no two turns are equal."""

    def __init__(self, tokenizer: ChatTokenizer, *, adds: bool = False) -> None:
        """Calls the program's `shell`, or the pool's own `add`."""
        self._tokenizer = tokenizer
        self._adds = adds
        self._n = 0
        self.sampled: list[list[int]] = []

    async def __call__(self, _: list[int], params: GenerateParams) -> Generation:
        """Answers a callback."""
        messages = params.messages
        said = " ".join(str(one["content"]) for one in messages if one["role"] == "user")
        ids = await self._next(said, sum(one["role"] == "tool" for one in messages))
        return Generation(token_ids=ids, logprobs=[-0.25] * len(ids))

    async def sample(self, _: str, prompt: list[int], most: int) -> Answer:
        """Answers for an engine."""
        text = self._tokenizer.decode(prompt)
        ids = (await self._next(text, text.count("<tool_response>")))[:most]
        spans = [{"version": "default", "start": 0, "end": len(ids)}]
        return Answer(ids, "stop", spans, [logprob_of(one) for one in ids])

    async def _next(self, said: str, done: int) -> list[int]:
        await asyncio.sleep(random.uniform(0.02, 0.2))
        self._n += 1
        rounds = int(said.rpartition("do ")[2].split()[0])
        if done < rounds:
            arguments = {"a": self._n, "b": 1} if self._adds else {"command": f"echo {self._n}"}
            call = {"name": "add" if self._adds else "shell", "arguments": arguments}
            text = f"<tool_call>\n{json.dumps(call, separators=(',', ':'))}\n</tool_call>"
        else:
            text = f"Answer number {self._n}."
        assert self._tokenizer.close_id is not None
        ids = [*self._tokenizer.encode(text), self._tokenizer.close_id]
        self.sampled.append(ids)
        return ids


class PatientProgram(Program):
    """A program that asks again as an SDK does."""

    async def call(self) -> tuple[str, list[tuple[str, str]]]:
        """Calls the model; raises what the last repetition met."""
        path, body = self.request()
        for attempt in range(len(PAUSE_SECONDS) + 1):
            headers = {**self._headers(), "x-stainless-retry-count": str(attempt)}
            try:
                async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
                    reply = await client.post(f"{self.url}{path}", json=body, headers=headers)
                if reply.status_code < 500 and reply.status_code != 429:
                    reply.raise_for_status()
                    return self.take([reply.json()])
                why = f"status {reply.status_code}: {reply.text[:200]}"
            except httpx.TransportError as error:
                why = repr(error)
            if attempt < len(PAUSE_SECONDS):
                await asyncio.sleep(PAUSE_SECONDS[attempt])
        raise RuntimeError(f"the program gives up: {why}")


@contextlib.asynccontextmanager
async def balanced(ports: list[int]) -> AsyncIterator[int]:
    """A balancer that gives a connection to the next door that takes it; yields its port."""
    turn = 0

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turn
        turn += 1
        for n in range(len(ports) * 20):
            try:
                other = await asyncio.open_connection("127.0.0.1", ports[(turn + n) % len(ports)])
                break
            except OSError:
                await asyncio.sleep(0.02)
        else:
            writer.close()
            return
        await asyncio.gather(pipe(reader, other[1]), pipe(other[0], writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


class Extra:
    """A process beside the pool's own, started again whenever it ends."""

    def __init__(self, module: str, env: dict[str, str], log: Path) -> None:
        self._command, self._env, self._log = [sys.executable, "-m", module], env, log
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            return subprocess.Popen(self._command, env={**os.environ, **self._env}, stdout=output, stderr=output)

    def revive(self) -> None:
        """Starts it again if it has ended."""
        if self.process.poll() is not None:
            self.process = self._start()

    def close(self) -> None:
        """Ends it."""
        self.process.kill()
        self.process.wait()


def pids_of(kind: str) -> list[int]:
    """Returns the processes of a kind below this one."""
    words = {
        "door": "rolloutpool_api.capabilities.harness",
        "runner": "rolloutpool_worker.capabilities.harness",
        "redis": "redis-server",
        "program": PROGRAM.name,
        "worker": "--worker-id",
    }[kind]
    return [pid for pid in family(os.getpid())[1:] if words in command_of(pid)]


def command_of(pid: int) -> str:
    """Returns the command line of a process; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


class Campaign:
    """One campaign, and what it has counted."""

    def __init__(
        self, client: AsyncRolloutClient, door: str, doors: list[int], trainers: dict[str, dict[str, Any]]
    ) -> None:
        self._client, self._door, self._doors, self._trainers = client, door, doors, trainers
        self.kills: Counter[str] = Counter()
        self.results: dict[str, list[RolloutResult]] = {name: [] for name in trainers}
        self.errors: list[str] = []
        self.ended = False
        self._killed: Counter[str] = Counter()
        self._spared = dict.fromkeys(SPARED, 0.0)

    async def session(self, name: str, number: int) -> None:
        """Runs one session, of a program here or of one that a runner starts."""
        rounds = random.choice(ROUNDS)
        runs = number // len(self._trainers) % 3 == 2
        text = f"session {number}, do {rounds} rounds"
        command = [sys.executable, str(PROGRAM), text]
        env = {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}"}
        harness = {"command": command, "env": env} if runs else {"external": True}
        options = {key: value for key, value in self._trainers[name].items() if key != "trainer"}
        batch = await self._client.submit(
            [{"messages": [{"role": "user", "content": text}]}],
            defaults={"tokenizer_name": TINY, "harness": harness, "max_tokens_total": 100_000, **options},
            trainer=self._trainers[name]["trainer"],
        )
        if not runs:
            found = await batch.session(0)
            program = PatientProgram(f"{self._door}/s/{found.uid}", found.key)
            try:
                await program.run(text)
            except Exception as error:
                self.errors.append(f"{found.uid}: {error!r}")
            await batch.end_session(0, reward=1.0)
        async with asyncio.timeout(LONGEST):
            async for result in batch.results():
                self.results[name].append(result)

    async def plain(self, number: int) -> None:
        """Runs some ordinary rollouts."""
        texts = [f"rollout {number}.{n}, do {random.choice(ROUNDS)} rounds" for n in range(PLAIN)]
        batch = await self._client.submit(
            [{"messages": [{"role": "user", "content": text}]} for text in texts],
            defaults={"tokenizer_name": TINY, "tools": ["add"]},
            trainer=self._trainers["plain"]["trainer"],
        )
        async with asyncio.timeout(LONGEST):
            async for result in batch.results():
                self.results["plain"].append(result)

    async def work(self, numbers: Iterator[int]) -> None:
        """Runs sessions, one after the other, until the kills are over."""
        while not self.ended:
            number = next(numbers)
            name = list(self._trainers)[number % len(self._trainers)]
            try:
                await (self.plain(number) if name == "plain" else self.session(name, number))
            except Exception as error:
                self.errors.append(f"session {number} ({name}): {error!r}")

    async def kill(self, times: int, extras: list[Extra]) -> None:
        """Kills at random, and waits a little after each."""
        while sum(self.kills.values()) < times:
            for extra in extras:
                extra.revive()
            kind = random.choice(VICTIMS)
            pids = await asyncio.to_thread(pids_of, kind)
            if pids and await self._may_kill(kind, pid := random.choice(pids)):
                os.kill(pid, signal.SIGKILL)
                self.kills[kind] += 1
            await asyncio.sleep(random.uniform(0.3, 1.3))
            # One thing at a time: Redis is back before the next kill.
            await self._redis_answers()
        for extra in extras:
            extra.revive()
        self.ended = True

    async def _may_kill(self, kind: str, pid: int) -> bool:
        """Spares what nobody promises to outlast (`SPARED`); a program is started again twice at the most."""
        now = time.monotonic()
        if kind in SPARED:
            if now - self._spared[kind] < SPARED[kind] or (kind == "door" and not await self._all_answer()):
                return False
            self._spared[kind] = now
        if kind == "program":
            command = command_of(pid)
            self._killed[command] += 1
            return bool(command) and self._killed[command] <= 2
        return True

    async def _all_answer(self) -> bool:
        async with httpx.AsyncClient(timeout=1, trust_env=False) as client:
            answers = await asyncio.gather(
                *[client.get(f"http://127.0.0.1:{port}/livez") for port in self._doors], return_exceptions=True
            )
        return all(isinstance(one, httpx.Response) and one.is_success for one in answers)

    async def _redis_answers(self) -> None:
        async with asyncio.timeout(LONGEST):
            while True:
                with contextlib.suppress(ClientError):
                    if not await self._client.workers():
                        self._spared["door"] = time.monotonic()
                    return
                await asyncio.sleep(0.2)


def judge(results: list[RolloutResult], turns: list[list[int]], *, idempotent: bool) -> list[str]:
    """Says what is wrong with what was delivered, by what was sampled."""
    faults = []
    left = Counter(map(tuple, turns))
    if twice := [ids for ids, n in left.items() if n > 1]:
        faults.append(f"the policy says {len(twice)} turns twice, so they can't be told apart")
    kept = Counter(tuple(ids) for result in results for ids in sampled(result))
    faults += [f"a turn is in {n} samples" for n in kept.values() if n > 1]
    faults += ["a sample has a turn that nobody sampled"] * len(kept.keys() - left.keys())
    named = sum(
        n for result in results if result.harness for line in result.harness.lines for n in line.left_out.values()
    )
    lost = sum(len(ids) for ids in left.keys() - kept.keys())
    if idempotent and lost != named:
        faults.append(f"{lost} sampled tokens are in no sample, and {named} are named as left out")
    for result in results:
        if result.failure is not None:
            faults.append(f"{result.uid} failed: {result.failure.category}: {result.failure.message}")
    return faults


async def main(times: int, seed: int) -> int:
    """Runs a campaign; returns 1 if anything was wrong."""
    random.seed(seed)
    tokenizer = load_tokenizer(TINY)
    policies = {"callback": CountedPolicy(tokenizer), "engine": CountedPolicy(tokenizer)}
    policies["plain"] = CountedPolicy(tokenizer, adds=True)
    add = [tool.definition for tool in TOOLS.values() if tool.name == "add"]
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalPool(workers=2, flower=False, door=True) as pool,
        serve_callback(callback_app(policies["callback"], tokenizer=tokenizer), [0]) as served,
        serve_callback(callback_app(policies["plain"], tokenizer=tokenizer, tools=add), [0]) as served_plain,
    ):
        env = {"ROLLOUTPOOL_REDIS_URL": pool.redis_url, "ROLLOUTPOOL_SECRETS_FILE": str(pool.secrets_file)}
        second = free_port()
        doors = [int((pool.door_url or "").rpartition(":")[2]), second]
        async with (
            balanced(doors) as port,
            vllm_server(tokenizer, "unused") as engine,
            pool.async_client(timeout=300) as client,
        ):
            engine.sampler, engine.keeps_requests, engine.context = policies["engine"].sample, False, 1_000_000
            door = f"http://127.0.0.1:{port}"
            extras = [
                Extra(
                    "rolloutpool_api.capabilities.harness",
                    {**env, "ROLLOUTPOOL_DOOR_PORT": str(second)},
                    Path(folder) / "door",
                ),
                Extra(
                    "rolloutpool_worker.capabilities.harness",
                    {**env, "ROLLOUTPOOL_DOOR_URL": door, "ROLLOUTPOOL_RUNNER_PROCESS": "unsafe"},
                    Path(folder) / "runner",
                ),
            ]
            trainers: dict[str, dict[str, Any]] = {
                "callback": {"trainer": [served.url]},
                "engine": {"trainer": [engine.url], "protocol": "vllm"},
                "plain": {"trainer": [served_plain.url]},
            }
            campaign = Campaign(client, door, doors, trainers)
            started = time.monotonic()
            numbers = iter(range(10**6))
            works = [asyncio.create_task(campaign.work(numbers)) for _ in range(AT_ONCE)]
            try:
                await asyncio.sleep(3)
                await campaign.kill(times, extras)
                for extra in extras:
                    extra.revive()
                await asyncio.gather(*works)
            finally:
                for extra in extras:
                    extra.close()
            faults = list(campaign.errors)
            for name, results in campaign.results.items():
                own = judge(results, policies[name].sampled, idempotent=name != "engine")
                faults += [f"{name}: {fault}" for fault in own]
                turns = sum(result.num_llm_calls for result in results)
                again = sum(turn.resampled for result in results for turn in result.turns)
                asked = len(policies[name].sampled)
                print(f"{name}: {len(results)} rollouts, {turns} turns, {asked} sampled, {again} resampled")
            print(f"kills: {dict(campaign.kills)} in {time.monotonic() - started:.0f} s")
            for fault in faults:
                print(f"FAULT {fault}")
            return 1 if faults else 0


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--seed", type=int, default=int(time.time()))
    given = options.parse_args()
    print(f"seed {given.seed}")
    sys.exit(asyncio.run(main(given.kills, given.seed)))
