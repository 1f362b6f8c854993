"""What one turn costs at 1k to 128k tokens of history, compared with rendering history again. `make bench-tokens`.

    python -m benchmarks.tokens [--quick] [TOKENIZER ...]

A turn is a tool result of about 350 tokens and a sampled answer. Four ways are timed one after the other in each round,
so that a busy machine slows all of them. Figures are medians over the rounds, wall clock, one thread:

  delta        render only what is new, verify an echo that leaves the known prefix out (by digest)
  full echo    the same, comparing the whole echoed prompt; parsing its JSON is not included
  predict      delta, and count what a trainer that renders history again will count (`mask_mode` rerender)
  re-render    render and tokenise the whole history: the method that this replaces
"""

import gc
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.report import Plot, Row, emit, parser

from rolloutpool_common.rendering import SAMPLED_TAIL, TINY, ChatTokenizer, RerenderCounter, load_tokenizer, rerender
from rolloutpool_common.tokens.comparison import EchoKind
from rolloutpool_common.tokens.ledger import TokenLedger

SIZES = (1_000, 8_000, 32_000, 128_000)
WAYS = ("delta", "full echo", "predict", "re-render")
SENSORS = 45
CALL_ID = "sensors01"
Message = dict[str, Any]
FUNCTION = {"name": "read_sensors", "arguments": {"first": 1}}
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": CALL_ID, "type": "function", "function": FUNCTION}],
}


class Conversation:
    """A history of a given size that can be continued by one turn, again and again."""

    def __init__(self, tokenizer: ChatTokenizer, size: int) -> None:
        self.tokenizer = tokenizer
        self.messages: list[Message] = [{"role": "user", "content": "Find the reading of every sensor."}]
        self.sampled = tokenizer.encode(f"{json.dumps(FUNCTION)}{tokenizer.close_token or ''}")
        ledger = TokenLedger()
        ledger.seed(tokenizer.render_prompt(self.messages))
        turn = 0
        while True:
            turn += 1
            ledger.append_sampled(self.sampled, [-0.5] * len(self.sampled), turn=turn)
            self.messages.append(CALL)
            if len(ledger) >= size:
                break
            new = self.result(turn)
            self.append(ledger, new, turn)
            self.messages.append(new)
        self.turn = turn
        self.entries = ledger.entries
        self.counter = RerenderCounter(tokenizer, tools=None, template_kwargs=None)
        for _ in range(2):  # the first count decides how to count, the second fills the cache
            self.counter.count(self.messages)

    def result(self, seed: int) -> Message:
        readings = " ".join(f"s{(seed * 7919 + i) % 997} {i * seed % 89}" for i in range(SENSORS))
        return {"role": "tool", "name": "read_sensors", "tool_call_id": CALL_ID, "content": readings}

    def append(self, ledger: TokenLedger, new: Message, turn: int) -> None:
        delta = self.tokenizer.render_delta([new], sampled=ledger.last_sampled(SAMPLED_TAIL))
        ledger.append_close(delta.close_ids, turn=turn)
        ledger.append_glue(delta.glue_ids, turn=turn)

    def round(self, number: int, times: dict[str, list[float]]) -> None:
        """Continues the conversation once in each way."""
        turn, new = self.turn, self.result(10_000 + number)
        for way in ("delta", "full echo"):
            ledger = TokenLedger.replay(self.entries)
            head = ledger.head
            probe = TokenLedger.replay(self.entries)
            self.append(probe, new, turn)
            echo = probe.ids if way == "full echo" else probe.ids[head:]
            with timed(times[way]):
                self.append(ledger, new, turn)
                if way == "full echo":
                    verdict = ledger.accept_echo(echo)
                else:
                    known = ledger.head_digest
                    verdict = ledger.accept_echo(echo, prefix=head)
                ledger.append_sampled(self.sampled, [-0.5] * len(self.sampled), turn=turn + 1)
            if verdict.kind is not EchoKind.EQUAL or (way == "delta" and known != probe.head_digest):
                raise AssertionError(f"a clean echo came out as {verdict.kind}")
        continued = [*self.messages, new]
        with timed(times["predict"]):
            predicted = self.counter.count(continued)
        with timed(times["re-render"]):
            rendered = rerender(self.tokenizer, continued)
        times["predict"][-1] += times["delta"][-1]
        if predicted != len(rendered):
            raise AssertionError(f"predicted {predicted} ids, rendered {len(rendered)}")


@contextmanager
def timed(times: list[float]) -> Iterator[None]:
    """Appends the milliseconds that the block takes."""
    gc.collect()
    gc.disable()
    started = time.perf_counter()
    try:
        yield
        times.append((time.perf_counter() - started) * 1000)
    finally:
        gc.enable()


def measure(tokenizer: ChatTokenizer, name: str, sizes: Sequence[int], rounds: int) -> list[Row]:
    """Returns one row per size."""
    rows: list[Row] = []
    first: list[float] = []
    for size in sizes:
        conversation = Conversation(tokenizer, size)
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in range(rounds + 2):
            conversation.round(number, times)
        kept = {way: taken[2:] for way, taken in times.items()}
        first = first or kept["delta"]
        # Sizes are measured one after the other: noise is the spread of the middle half.
        low, _, high = quantiles(kept["delta"], n=4)
        rows.append(
            {
                "tokenizer": name,
                "size": size,
                "tokens": len(TokenLedger.replay(conversation.entries)),
                "turns": conversation.turn,
                **{f"{way}, ms": median(kept[way]) for way in WAYS},
                "delta / delta at the shortest": median(kept["delta"]) / median(first),
                "delta / delta at the shortest ±": (high - low) / 2 / median(first),
                "re-render / delta": median(kept["re-render"]) / median(kept["delta"]),
            }
        )
    return rows


def main() -> None:
    """Measures every tokenizer at every size and prints a table."""
    options = parser("tokens", __doc__)
    options.add_argument("tokenizers", nargs="*", help="names or directories; default: tiny and what is laid out")
    options.add_argument("--rounds", type=int, default=15)
    chosen = options.parse_args()
    sizes, rounds = (SIZES[:2], 3) if chosen.quick else (SIZES, chosen.rounds)
    laid_out = [str(d) for d in (Path("build/tokenizers") / n for n in ("qwen3", "llama3_2")) if d.is_dir()]
    rows: list[Row] = []
    for name in chosen.tokenizers or [TINY, *([] if chosen.quick else laid_out)]:
        rows += measure(load_tokenizer(name), Path(name).name, sizes, rounds)
    emit(
        "tokens",
        rows,
        chosen,
        title="Cost of a turn over the length of its conversation",
        measures=(
            f"Milliseconds of one thread for one more turn, medians of {rounds} paired rounds: rendering only what is "
            "new, with an echo that leaves the known prefix out (delta), with a whole echo, with predicting what a "
            "trainer that renders again will count; and rendering the whole history again. The budget: delta at 128k "
            "tokens costs at most 1.5 times what it costs at 1k."
        ),
        leaves_out=(
            "The model, the network, JSON: a whole echo of 128k tokens has to be sent and parsed as well. Tool results "
            "of other lengths than 350 tokens: a turn costs what its new tokens cost."
        ),
        plots=(
            Plot(
                kind="line",
                x="tokens",
                y=tuple(f"{way}, ms" for way in WAYS),
                unit="ms per turn",
                only={"tokenizer": Path(TINY).name},
                log_x=True,
                log_y=True,
            ),
        ),
    )


if __name__ == "__main__":
    main()
