"""What a rollout costs its worker in CPU, by what the trainer does with history: without sockets, Redis or a pool.

    python -m benchmarks.turn_cost [--quick] [TOKENIZER ...]

Whole attempts run in this process: claim, conversation, tools, journal, result. The trainer is a client that has all
replies ready, and the store keeps nothing. What the trainer's kind costs is all that differs between the rows of one
length, so they are measured in turn. Figures are CPU time of this process, which other load disturbs little; the
smallest is the least disturbed.
"""

import asyncio
import gc
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, cast

import orjson
from benchmarks.conversations import VARIANTS, Turn, conversation, messages, rollout_id, tool_names
from benchmarks.load import Load, TrainerManner
from benchmarks.report import Plot, Row, emit, parser

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.journal import JournalRecord, TrainerKind, encode_record
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.turn_headers import HEADER_ECHO_DIGEST
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.rendering import TINY
from rolloutpool_common.store import Claim, Store
from rolloutpool_common.store.records import compress, finish_fields
from rolloutpool_worker.conversation.trainer_kinds import TrainerKinds
from rolloutpool_worker.policy.turn_client import TurnAnswer, TurnClient, read_headers
from rolloutpool_worker.rollout.services import Services
from rolloutpool_worker.rollout.ticket import run_rollout
from rolloutpool_worker.settings import WorkerSettings

ENGINE = "engine"
"""No trainer: a vLLM is asked with ids."""
LENGTHS = (3, 64)
TURNS_PER_ROUND = 192
"""A round is so many turns of each trainer: 64 rollouts of 3, or 3 of 64."""


class _Trainer:
    """The client that endpoints ask. Each rollout asks its turns in their order."""

    seconds = 60.0

    def __init__(self) -> None:
        self.replies: list[Turn] = []
        """Those of the rollout that runs."""
        self.asked = 0

    async def ask(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, **limits: float | None
    ) -> TurnAnswer:
        """Answers with the next reply, without the prefix that the worker knows where it offers to do without it."""
        turn, offered = self.replies[self.asked], headers.get(HEADER_ECHO_DIGEST, "")
        self.asked += 1
        status, fields, data = _read(turn.delta if offered and offered == turn.digest.decode() else turn.whole)
        return TurnAnswer(status, read_headers(fields), data, True, lambda: None)


class _Engine(_Trainer):
    """The same replies as vLLM would give them to a worker that asks with ids."""

    async def ask(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, **limits: float | None
    ) -> TurnAnswer:
        """Answers with the next reply, or with what vLLM says of itself."""
        if url.endswith("/v1/models"):
            data = b'{"data":[{"id":"policy","max_model_len":1000000}]}'
        elif url.endswith("/weight_info"):
            data = b'{"weight_version":"1"}'
        else:
            data = _of_vllm(self.replies[self.asked].whole)
            self.asked += 1
        return TurnAnswer(200, {}, data, True, lambda: None)


@lru_cache(maxsize=VARIANTS * max(LENGTHS))
def _of_vllm(response: bytes) -> bytes:
    reply = orjson.loads(_read(response)[2])
    ids, logprobs = reply["token_ids"], reply["logprobs"]
    content = [{"token_id": i, "logprob": p, "rank": 1, "top_logprobs": []} for i, p in zip(ids, logprobs, strict=True)]
    spans = [{"version": "1", "start": 0, "end": len(ids)}] if ids else []
    choice = {"index": 0, "token_ids": ids, "finish_reason": "stop", "logprobs": {"content": content}}
    choices = [{**choice, "weight_versions": spans}]
    return orjson.dumps({"prompt_token_ids": reply["prompt_token_ids"], "choices": choices})


@lru_cache(maxsize=VARIANTS * max(LENGTHS))
def _read(response: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    head, _, data = response.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    fields = (line.partition(b": ") for line in lines)
    return int(status.split()[1]), [(name, value) for name, _, value in fields], data


class _Store:
    """The rooms of a store that an attempt enters. What would be sent is written, compressed and dropped."""

    def __init__(self) -> None:
        self.spec: RolloutSpec | None = None
        """Of the rollout that is claimed next."""
        self.result: RolloutResult | None = None
        self.rollouts = self.model_calls = self.trainers = self

    def with_secrets(self, spec: RolloutSpec) -> RolloutSpec:
        """Returns the spec, which has no secrets."""
        return spec

    async def claim(self, uid: str, worker_id: str, role: WorkerRole, *, token: str, trainer: str) -> Claim:
        """Gives the rollout away."""
        assert self.spec is not None
        return Claim(
            uid=uid,
            batch_id="b",
            index=0,
            worker_id=worker_id,
            role=role,
            token=token,
            attempt=1,
            crashes=0,
            retries=0,
            deferrals=0,
            journal_length=0,
            clean=True,
            group=None,
            deadline_in_s=600.0,
            queued_ms=0.0,
            # Its parsing belongs to the claim.
            spec=RolloutSpec.model_validate_json(self.spec.model_dump_json()),
            more_waiting=False,
        )

    async def note(self, claim: Claim) -> None:
        """Notes a model call."""

    async def note_idempotent(self, claim: Claim) -> None:
        """Notes the trainer's promise."""

    async def journal(self, claim: Claim, records: Sequence[JournalRecord], *, turns: int) -> None:
        """Writes the last record."""
        compress(encode_record(records[-1]))

    async def finish(self, claim: Claim, result: RolloutResult, *, attachments: bytes = b"") -> None:
        """Writes the result; here are no attachments."""
        await finish_fields(result, None)
        self.result = result

    async def kind(self, name: str) -> TrainerKind:
        """Knows no trainer: what is learned stays in the process."""
        return TrainerKind.UNKNOWN


class _Worker:
    """What one process gives its rollouts, with the trainer and the store above."""

    def __init__(self, manner: TrainerManner, turns: int, tokenizer: str, *, engine: bool = False) -> None:
        self._load = Load(turns=turns, in_flight=1, latency_ms=0, rollouts=1, trainer=manner)
        self._tokenizer = tokenizer
        self._protocol = "vllm" if engine else "callback"
        self._store, self._trainer = _Store(), _Engine() if engine else _Trainer()
        self._services = Services(WorkerSettings.model_validate({"redis_url": "redis://127.0.0.1:1"}))
        self._services.store = cast(Store, self._store)
        self._services.kinds = TrainerKinds(cast(Any, self._store))
        self._services.turns = cast(TurnClient, self._trainer)
        self._serial = 0

    async def run(self, rollouts: int) -> float:
        """Runs rollouts one after the other; returns the CPU milliseconds of one."""
        gc.collect()
        gc.disable()
        try:
            return sum([await self._run() for _ in range(rollouts)]) / rollouts
        finally:
            gc.enable()

    async def _run(self) -> float:
        load, serial = self._load, self._serial
        self._serial += 1
        self._store.spec = RolloutSpec.model_validate(self._fields(serial))
        self._trainer.replies = conversation(load.turns, serial % VARIANTS, 0, self._tokenizer, load.trainer)
        self._trainer.asked = 0
        before = time.process_time()
        await run_rollout(self._services, f"b-{serial}", token="t")
        spent = time.process_time() - before
        result = self._store.result
        if result is None or result.status is not RolloutStatus.COMPLETED or result.num_llm_calls != load.turns:
            raise AssertionError(f"not a clean rollout: {result and result.failure}")
        return spent * 1000

    def _fields(self, serial: int) -> Mapping[str, Any]:
        return {
            "rollout_id": rollout_id(self._load, serial),
            "server_url": "http://127.0.0.1:1",
            "messages": messages(self._load, serial),
            "tokenizer_name": self._tokenizer,
            "sampling_params": {},
            "max_turns": self._load.turns,
            "max_tokens_total": 1_000_000,
            "v1": self._load.trainer is not TrainerManner.DECLARES,
            "protocol": self._protocol,
            # Those that the prompts of the replies show; a process may have others as well.
            "tools": tool_names(self._load),
        }


async def measure(
    tokenizer: str, lengths: Sequence[int], rounds: int, turns_per_round: int = TURNS_PER_ROUND
) -> list[Row]:
    """Returns one row per trainer and length; a row's first round fills caches and is not counted."""
    rows: list[Row] = []
    for turns in lengths:
        workers = {manner.value: _Worker(manner, turns, tokenizer) for manner in TrainerManner}
        workers[ENGINE] = _Worker(TrainerManner.DECLARES, turns, tokenizer, engine=True)
        times: dict[str, list[float]] = {manner: [] for manner in workers}
        rollouts = max(1, turns_per_round // turns)
        for _ in range(rounds + 1):
            for manner, worker in workers.items():
                times[manner].append(await worker.run(rollouts))
        for manner, spent in times.items():
            kept = spent[1:]
            rows.append(
                {
                    "tokenizer": Path(tokenizer).name,
                    "trainer": manner,
                    "turns": turns,
                    "CPU ms": min(kept),
                    "CPU ms, median": median(kept),
                    "CPU ms per turn": min(kept) / turns,
                    "rollouts": rollouts * rounds,
                }
            )
    return rows


def main() -> None:
    """Measures every trainer at every length and prints a table."""
    options = parser("turn_cost", __doc__)
    options.add_argument("tokenizers", nargs="*", help="names or directories; default: tiny")
    options.add_argument("--rounds", type=int, default=12)
    chosen = options.parse_args()
    rounds = 2 if chosen.quick else chosen.rounds
    rows: list[Row] = []
    for name in chosen.tokenizers or [TINY]:
        rows += asyncio.run(measure(name, LENGTHS, rounds))
    emit(
        "turn_cost",
        rows,
        chosen,
        title="What a rollout costs its worker, by trainer",
        measures=(
            f"CPU milliseconds of a worker's whole attempt at one rollout, the smallest of {rounds} rounds: for a "
            "trainer that declares that it keeps ids (batch), for one that keeps them and says nothing (v1), and for "
            "one that renders history again (v1). Engine: vLLM, asked with ids. The tools are the calculator's."
        ),
        leaves_out=(
            "Sockets, Redis, the queue, the API, and other rollouts of the same worker: rollouts run one after the "
            "other here, and nothing waits."
        ),
        plots=(Plot(kind="bar", x="trainer", y=("CPU ms",), unit="CPU ms per rollout", only={"turns": LENGTHS[0]}),),
    )


if __name__ == "__main__":
    main()
