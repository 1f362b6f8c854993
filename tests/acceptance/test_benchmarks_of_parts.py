"""The benchmarks of single parts run, with numbers too small to say anything."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from benchmarks import demo, loop_delay, memory, neighbours, recovery, results, submit, tokens, turn_cost, waiters
from benchmarks.load import TrainerManner
from benchmarks.local_pool import local_pool
from benchmarks.report import Row

from rolloutpool_common.rendering import TINY, load_tokenizer
from rolloutpool_trainer import LocalPool


@pytest.fixture(scope="module")
def idle_pool() -> Iterator[LocalPool]:
    """Redis and an API."""
    with local_pool(workers=0) as pool:
        yield pool


@pytest.fixture(scope="module")
def loop_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loop") / "loop"


@pytest.fixture(scope="module")
def pool(loop_file: Path) -> Iterator[LocalPool]:
    """With a worker that has a probe in its loop."""
    with local_pool(workers=1, env=loop_delay.environment(loop_file)) as pool:
        yield pool


def number(row: Row, column: str) -> float:
    cell = row[column]
    assert isinstance(cell, int | float), f"{column} is {cell!r}"
    return cell


def column(rows: Sequence[Row], name: str) -> list[float]:
    return [number(row, name) for row in rows]


def test_a_turn() -> None:
    rows = tokens.measure(load_tokenizer(TINY), "tiny", (200, 800), rounds=2)
    short, long = column(rows, "tokens")
    assert 200 <= short < 800 <= long
    assert all(number(row, f"{way}, ms") > 0 for row in rows for way in tokens.WAYS)


async def test_what_each_trainer_costs() -> None:
    rows = await turn_cost.measure(TINY, (2, 3), rounds=1, turns_per_round=6)
    assert [(row["trainer"], row["turns"]) for row in rows] == [
        (manner, turns) for turns in (2, 3) for manner in (*TrainerManner, turn_cost.ENGINE)
    ]
    assert all(ms > 0 for ms in column(rows, "CPU ms"))


def test_waiters(idle_pool: LocalPool) -> None:
    rows = waiters.measure(idle_pool, waiters=9, per_second=100)
    assert [row["who"] for row in rows] == [*waiters.KINDS, "ping"] * 2
    assert [row["times"] for row in rows if row["who"] != "ping"] == [3] * 6
    assert all(0 < number(row, "ms, median") <= number(row, "ms, largest") for row in rows)


def test_reading_results(idle_pool: LocalPool) -> None:
    rows = results.measure(idle_pool, 12, 100, repeats=1)
    assert len(rows) == 5
    assert min(column(rows, "results/s")) > 0
    # The same JSON, whether in pages or straight from the store; events have none.
    pages = [number(row, "kB each") for row in rows if row["way"] != "events (ids only)"]
    assert max(pages) < 1.1 * min(pages)


def test_memory(idle_pool: LocalPool) -> None:
    size, of_tokens = memory.in_flight(idle_pool, 4)
    assert size > 50 * memory.MB
    # Some hundred tokens, each in the ledger and in the journal.
    assert 1_000 < of_tokens < 20_000


def test_pushed_results(idle_pool: LocalPool) -> None:
    """Last of those without workers: it starts one."""
    row = results.measure_push(idle_pool, 20, 100)
    assert number(row, "results/s") > 0


def test_submitting(pool: LocalPool) -> None:
    rows = submit.measure(pool, (10, 200), repeats=1)
    assert column(rows, "rollouts") == [10, 200]
    for row in rows:
        assert 0 < number(row, "202, ms") < number(row, "first call, ms")
    # Its own prompt is in there.
    assert number(rows[1], "Redis bytes each") > submit.PROMPT / 2
    # Of 200 on 8 slots some wait in the broker, each with ids alone.
    assert 0 < number(rows[1], "ticket, bytes") < 2_000


def test_the_delay_of_the_loop(pool: LocalPool, loop_file: Path) -> None:
    rows = loop_delay.measure(pool, loop_file, 2, large=10_000)
    assert [row["rollouts"] for row in rows] == [2, 2, 2, 2, None, None]
    # A short run may have no step that is long enough to be noted.
    timed = [row for row in rows if row["times"] != 0]
    assert len(timed) >= 4
    assert all(0 <= number(row, "ms, median") <= number(row, "ms, largest") for row in timed)


def test_recovery(pool: LocalPool) -> None:
    pool.add_worker()
    row = recovery.measure(pool, 4)
    assert number(row, "rollouts of the killed worker") > 0
    assert (row["lost"], row["delivered twice"], row["turns sampled twice"]) == (0, 0, 0)
    assert 0 < number(row, "first, s") <= number(row, "last, s")


def test_the_demo() -> None:
    row = demo.measure("--rollouts", "8", "--workers", "1")
    assert 0 < number(row, "first result, s") < number(row, "all checked, s") < number(row, "stopped, s")
    assert number(row, "CPU to the first result, s") > 0


def test_neighbours() -> None:
    load = neighbours.LOAD.with_rollouts(8)
    with local_pool(workers=1, env=neighbours.ENVIRONMENT) as pool:
        rows = neighbours.measure(pool, load, 1, neighbours.OFFENCES[:1] + neighbours.OFFENCES[-1:])
    assert [row["offender"] for row in rows] == ["10,000 tool calls in one reply", "an isolated tool that spins"]
    assert min(column(rows, "offences")) >= 1
    assert min(column(rows, "ratio")) > 0
