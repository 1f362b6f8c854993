"""What one turn costs at 1k, 8k, 32k and 128k tokens of history, beside rendering history again. `make bench-tokens`.

A turn is a tool result of about 350 tokens and a sampled answer. Four ways, timed one after the other in each round,
so that a busy machine slows all of them; medians over the rounds, wall clock, one thread:

  delta        render only what is new, verify an echo that leaves the known prefix out (by digest)
  full echo    the same, comparing the whole echoed prompt; parsing its JSON is not included
  predict      delta, and count what a trainer that renders history again will count (`mask_mode` rerender)
  re-render    render and tokenise the whole history: the method that this replaces
"""

import argparse
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rolloutpool_common.ledger import EchoKind, TokenLedger
from rolloutpool_common.rendering import TINY, ChatTokenizer, PlainCounter, load_tokenizer, render_plain

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
        self.counter = PlainCounter(tokenizer, tools=None, template_kwargs=None)
        for _ in range(2):  # the first count decides how to count, the second fills the cache
            self.counter.count(self.messages)

    def result(self, seed: int) -> Message:
        readings = " ".join(f"s{(seed * 7919 + i) % 997} {i * seed % 89}" for i in range(SENSORS))
        return {"role": "tool", "name": "read_sensors", "tool_call_id": CALL_ID, "content": readings}

    def append(self, ledger: TokenLedger, new: Message, turn: int) -> None:
        delta = self.tokenizer.render_delta([new], last_sampled_id=ledger.last_sampled_id)
        ledger.append_close(delta.close_ids, turn=turn)
        ledger.append_glue(delta.glue_ids, turn=turn)

    def round(self, number: int, times: dict[str, list[float]]) -> None:
        """Continue once in each way."""
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
            rendered = render_plain(self.tokenizer, continued)
        times["predict"][-1] += times["delta"][-1]
        if predicted != len(rendered):
            raise AssertionError(f"predicted {predicted} ids, rendered {len(rendered)}")


@contextmanager
def timed(times: list[float]) -> Iterator[None]:
    """Append the milliseconds that the block takes."""
    gc.collect()
    gc.disable()
    started = time.perf_counter()
    try:
        yield
        times.append((time.perf_counter() - started) * 1000)
    finally:
        gc.enable()


def measure(tokenizer: ChatTokenizer, size: int, rounds: int) -> dict[str, float]:
    """Median milliseconds of each way at one size."""
    conversation = Conversation(tokenizer, size)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds + 2):
        conversation.round(number, times)
    tokens = len(TokenLedger.replay(conversation.entries))
    return {"tokens": tokens, "turns": conversation.turn, **{way: median(times[way][2:]) for way in WAYS}}


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizers", nargs="*", help="names or directories; default: tiny and what is laid out")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, default=Path("build/bench-tokens.json"))
    options = parser.parse_args()
    laid_out = [str(d) for d in (Path("build/tokenizers") / n for n in ("qwen3", "llama3_2")) if d.is_dir()]
    rows = []
    heads = "  ".join(f"{way + ' ms':>12}" for way in WAYS)
    print(f"{'tokenizer':<12} {'tokens':>7} {'turns':>5}  {heads}  {'over 1k':>8}  {'re-render / delta':>18}")
    for name in options.tokenizers or [TINY, *laid_out]:
        tokenizer = load_tokenizer(name)
        shown, first = Path(name).name, 0.0
        for size in SIZES:
            row = measure(tokenizer, size, options.rounds)
            first = first or row["delta"]
            rows.append({"tokenizer": shown, **row})
            cells = "  ".join(f"{row[way]:>12.2f}" for way in WAYS)
            ratios = f"{row['delta'] / first:>7.2f}x  {row['re-render'] / row['delta']:>17.0f}x"
            print(f"{shown:<12} {row['tokens']:>7.0f} {row['turns']:>5.0f}  {cells}  {ratios}", flush=True)
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"machine": machine, "rounds": options.rounds, "rows": rows}, indent=1) + "\n")
    print(f"medians of {options.rounds} rounds; {options.json}", file=sys.stderr)


if __name__ == "__main__":
    main()
