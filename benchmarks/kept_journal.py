"""What the journal adds to a finished rollout, beside what the record of release 0.2 added: bytes, and CPU.

    python -m benchmarks.kept_journal [--quick] [TOKENIZER]

Rollouts run in this process, with a real Redis and the stub trainer over sockets, as in a worker. The stub says the
same log-probability of each id, so in results and journals they are replaced by random ones, which compress as badly as
a model's. The record of release 0.2 had a digest for each turn and sample; random bytes stand for them.
"""

import asyncio
import random
import secrets
import tempfile
import time
from array import array
from dataclasses import replace
from pathlib import Path

from benchmarks.fsync import server
from benchmarks.load import Load, TrainerManner
from benchmarks.processes import serving
from benchmarks.report import Row, emit, parser
from benchmarks.steady_turn import submit

from rolloutpool_common.protocol.journal import JournalRecord
from rolloutpool_common.protocol.kept_journal import keep_journal, read_journal
from rolloutpool_common.protocol.replay import ReplayRecord
from rolloutpool_common.protocol.result import RolloutResult, encode_result
from rolloutpool_common.rendering import TINY
from rolloutpool_common.store.records import compress
from rolloutpool_common.tokens.arrays import float_bytes, pack_bytes, unpack
from rolloutpool_common.tokens.entries import Entry, SampledEntry
from rolloutpool_worker.rollout.services import Services
from rolloutpool_worker.rollout.ticket import run_rollout
from rolloutpool_worker.settings import WorkerSettings

REPEATS = 50
"""Of writing one journal, for its CPU."""


def _other_logprobs(result: RolloutResult, records: list[JournalRecord]) -> list[JournalRecord]:
    """Puts random log-probabilities into a result and its journal; returns the journal."""
    pick, said = random.Random(1), array("d")

    def other(entry: Entry) -> Entry:
        if not isinstance(entry, SampledEntry):
            return entry
        # Servers compute them as float32.
        rounded = array("f", (-pick.expovariate(1.0) for _ in unpack(entry.logprobs, array("d"))))
        drawn = array("d", rounded)
        said.extend(drawn)
        return replace(entry, logprobs=pack_bytes(float_bytes(drawn)))

    changed = [replace(record, entries=tuple(map(other, record.entries))) for record in records]
    left = iter(said)
    for sample in result.samples:
        sample.response_logprobs[:] = [next(left) if trained else 0.0 for trained in sample.response_mask]
    return changed


def _row(result: RolloutResult, manner: TrainerManner) -> Row:
    kept = read_journal(result)
    records = _other_logprobs(result, kept.records)
    assert result.replay is not None
    before = result.replay.model_dump(exclude={"journal"})
    start = time.process_time()
    for _ in range(REPEATS):
        journal = keep_journal(records, kept.submitted, result)
    spent = (time.process_time() - start) / REPEATS
    digests = {
        "turns": [secrets.token_hex(8) for _ in result.turns],
        "samples": [secrets.token_hex(16) for _ in result.samples],
    }
    written = [
        encode_result(result.model_copy(update={"replay": ReplayRecord.model_validate({**before, **more})}))
        for more in (digests, {"journal": journal})
    ]
    (old, new), (stored_old, stored_new) = map(len, written), map(len, map(compress, written))
    return {
        "trainer": manner.value,
        "turns": len(result.turns),
        "bytes, 0.2": old,
        "bytes": new,
        "ratio": round(new / old, 3),
        "stored bytes, 0.2": stored_old,
        "stored bytes": stored_new,
        "stored ratio": round(stored_new / stored_old, 3),
        "CPU, ms": round(spent * 1000, 2),
    }


async def measure(tokenizer: str, lengths: tuple[int, ...]) -> list[Row]:
    """Returns a row for each manner of trainers and length of rollouts."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, server("always", Path(folder)) as redis_port:
        services = Services(WorkerSettings.model_validate({"redis_url": f"redis://127.0.0.1:{redis_port}/0"}))
        with serving("benchmarks.stub_trainer", "--tokenizer", tokenizer) as port:
            for manner in (TrainerManner.DECLARES, TrainerManner.RERENDERS):
                for turns in lengths:
                    load = Load(turns=turns, in_flight=1, latency_ms=0, rollouts=1, trainer=manner)
                    uid = await submit(services, load, f"http://127.0.0.1:{port}", tokenizer, 1)
                    await run_rollout(services, uid)
                    data = await services.store.rollouts.result(uid)
                    if data is None:
                        raise AssertionError(f"{uid} has not ended")
                    rows.append(_row(RolloutResult.model_validate_json(data), manner))
        await services.close()
    return rows


def main() -> None:
    """Measures rollouts of several lengths, and prints a table."""
    options = parser("kept_journal", __doc__)
    options.add_argument("tokenizer", nargs="?", default=TINY, help="a name or a directory; default: tiny")
    chosen = options.parse_args()
    emit(
        "kept_journal",
        asyncio.run(measure(chosen.tokenizer, (3, 10) if chosen.quick else (3, 10, 64))),
        chosen,
        title="What the journal adds to a finished rollout",
        measures="Bytes of a result as it is delivered and as it is stored, and CPU to write its journal.",
        leaves_out="Edits, environments and forks, whose journals hold what their results lack.",
    )


if __name__ == "__main__":
    main()
