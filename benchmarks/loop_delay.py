"""How late a worker's event loop is while tool results of 128 kB arrive. All other rollouts of the worker are as late.

    python -m benchmarks.loop_delay [--quick]

Several rollouts with four such results each run at once in one worker, and then the same rollouts with results of 100
characters. The CPU time of the longest steps on the loop is the figure that a busy machine does not change; the run
prints where they are. For comparison, the same run measures how long the founding pattern stops its loop, because it
renders the whole history there before each call, for the same conversation and tokenizer.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.local_pool import local_pool
from benchmarks.loop_probe import FILE_VARIABLE, STEPS_VARIABLE, TOOL, text
from benchmarks.loop_steps import LONG_MS, read_steps
from benchmarks.loop_ticks import read_delays
from benchmarks.report import Plot, Row, emit, parser, spread

from rolloutpool_common.rendering import TINY, ChatTokenizer, load_tokenizer, rerender
from rolloutpool_trainer import LocalPool, callback_app
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.server import serve_callback

LARGE, SMALL = 128 * 1024, 100
RESULTS = 4
LONGEST = 12
"""Steps that are printed."""
ROLLOUTS, AT_ONCE = 32, 8


def environment(file: Path) -> dict[str, str]:
    """Returns the settings of a pool whose workers have the probe."""
    return {
        "ROLLOUTPOOL_PLUGINS": "benchmarks.loop_probe",
        "ROLLOUTPOOL_WORKER_SLOTS": str(AT_ONCE),
        FILE_VARIABLE: str(file),
        STEPS_VARIABLE: str(_steps(file)),
    }


def _steps(file: Path) -> Path:
    return file.with_suffix(".steps")


class _Reader:
    """A policy that reads so many logs and then answers in words."""

    def __init__(self, tokenizer: ChatTokenizer, characters: int) -> None:
        call = {"name": TOOL, "arguments": {"characters": characters}}
        self._call = _ids(tokenizer, f"<tool_call>\n{json.dumps(call)}\n</tool_call>")
        self._end = _ids(tokenizer, "I have seen enough.")

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        ids = self._call if params.turn <= RESULTS else self._end
        return Generation(token_ids=ids, logprobs=[-0.5] * len(ids))


def _ids(tokenizer: ChatTokenizer, said: str) -> list[int]:
    return [*tokenizer.encode(said), *([] if tokenizer.close_id is None else [tokenizer.close_id])]


def measure(pool: LocalPool, file: Path, rollouts: int, large: int = LARGE) -> list[Row]:
    """Measures the pool's one worker with small and with large results, then the stall of rendering again."""
    tokenizer = load_tokenizer(TINY)
    rows = []
    for size in (SMALL, large):
        start, stop = _run(pool, tokenizer, rollouts, size)
        # The delays first: their notes end after the run, and then those of the steps are written too.
        rows.append(_row(f"worker, results of {size:,} characters", rollouts, read_delays(file, start, stop)))
        steps = sorted(read_steps(_steps(file), start, stop), key=lambda step: -step.ms)
        for step in steps[:LONGEST]:
            print(f"{step.ms:6.1f} ms of CPU: {step.begun or 'its start'} to {step.ended or 'its end'}")
        rows.append(_row(f"its steps of {LONG_MS:g} ms of CPU and more", rollouts, [step.ms for step in steps]))
    for results in (1, RESULTS):
        stalls = [_stall(tokenizer, results, large) for _ in range(5)]
        rows.append(_row(f"rendered again on the loop, {results} x {large:,} characters", None, stalls))
    return rows


def _run(pool: LocalPool, tokenizer: ChatTokenizer, rollouts: int, size: int) -> tuple[float, float]:
    """Runs rollouts; returns when they began and ended, by `time.perf_counter`."""
    app = callback_app(_Reader(tokenizer, size), tokenizer=tokenizer, tools=pool.url)
    asks = [{"messages": [{"role": "user", "content": f"Look into the log of day {day}."}]} for day in range(rollouts)]
    defaults = {"tokenizer_name": TINY, "max_tokens_total": 1_000_000, "tools": [TOOL]}
    with serve_callback(app, [0]) as trainer, pool.client(timeout=300) as client:
        start = time.perf_counter()
        results = list(client.submit(asks, defaults=defaults, trainer=trainer.urls).results())
        stop = time.perf_counter()
    clean = [result for result in results if result.num_tool_calls == RESULTS and result.alignment == "exact"]
    if len(clean) != rollouts:
        raise AssertionError(f"{len(clean)} of {rollouts} rollouts read {RESULTS} logs and were proved")
    return start, stop


def _stall(tokenizer: ChatTokenizer, results: int, characters: int) -> float:
    """Returns the milliseconds that it takes to render a conversation with so many results."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "Look into the log."}]
    for turn in range(results):
        call = {"id": f"call{turn:05d}", "type": "function", "function": {"name": TOOL, "arguments": {}}}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": TOOL, "tool_call_id": call["id"], "content": text(characters, turn)},
        ]
    start = time.perf_counter()
    rerender(tokenizer, messages)
    return (time.perf_counter() - start) * 1000


def _row(what: str, rollouts: int | None, times: Sequence[float]) -> Row:
    return {
        "what": what,
        "rollouts": rollouts,
        **(spread(times) if times else {"times": 0}),
    }


def main() -> None:
    """Measures one worker."""
    options = parser("loop_delay", __doc__).parse_args()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "loop"
        with local_pool(workers=1, env=environment(file)) as pool:
            rows = measure(pool, file, AT_ONCE if options.quick else ROLLOUTS)
    emit(
        "loop_delay",
        rows,
        options,
        title="Delay of a worker's event loop",
        measures=(
            "Milliseconds by which a 5 ms timer on the worker's loop fires late, over all of a run of rollouts with "
            f"{RESULTS} tool results each, {AT_ONCE} at once; and the time for which the founding pattern's loop "
            "stands still before each call of the same conversation, for as long as rendering and tokenising take. "
            "A step is what one task does on the loop before it waits again; its time is the CPU time of the thread."
        ),
        leaves_out=(
            "The tools' own work, and models: the next result arrives as soon as the last one is dealt with, which no "
            "real policy does. On two cores that the trainer shares, waiting for a core counts as delay too: see the "
            "row with small results."
        ),
        plots=(Plot(kind="bar", x="what", y=("ms, p99", "ms, largest"), unit="ms", log_y=True),),
    )


if __name__ == "__main__":
    main()
