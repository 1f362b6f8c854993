"""What a delta costs, template by template: what is proved of it, and its CPU behind short and long histories.

    python -m benchmarks.deltas [--quick] [TOKENIZER ...]

Each tokenizer is loaded in this process, as a worker does it, and each template is met for the first time. Two shapes
are looked at, each behind a history with tools: a question behind an answer, and a result behind a call. Times are CPU
of one thread, which other load disturbs little; a delta's is the smallest of some. Histories are as long as the model
has seen them, in tokens; the longest is left out where the rule takes seconds for it.

  analysis   reading the template once for a shape (`rendering/proof`)
  short cut  `joined` from constants and words, a `smaller context`, or none: the `rule` on the whole history
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import Row, emit, parser

from rolloutpool_common.rendering import TINY, ChatTokenizer, TemplateMissing, TemplateRefused, load_tokenizer

LAID_OUT = ("build/tokenizers", "build/templates")
SIZES = (1_000, 128_000)
TIMES = 10
LIMIT_MS = 2_000.0
"""Past it one delta is enough."""
Message = dict[str, Any]
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "reading01", "type": "function", "function": {"name": "read_sensor", "arguments": {"number": 1}}}
    ],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_sensor",
            "description": "Reads a sensor.",
            "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
        },
    }
]


def _result(text: str) -> Message:
    return {"role": "tool", "name": "read_sensor", "tool_call_id": "reading01", "content": text}


QUESTION: Message = {"role": "user", "content": "Read the sensor."}
ANSWER: Message = {"role": "assistant", "content": "It says 38."}
READINGS = "".join(f"s{i % 997} {i * 7919 % 89} " for i in range(250)).strip()
SHAPES: tuple[tuple[str, Message, Message], ...] = (("user", ANSWER, QUESTION), ("tool", CALL, _result("38.5")))


def measure(name: str, sizes: Sequence[int], times: int) -> list[Row]:
    """Returns two rows of a tokenizer: its user messages and its tool results."""
    started = time.process_time()
    tokenizer = load_tokenizer(name)
    load_ms = (time.process_time() - started) * 1000
    rows: list[Row] = []
    for role, turn, new in SHAPES:
        row: Row = {"tokenizer": Path(name).name, "role": role, "load, ms": load_ms}
        sampled = tokenizer.closing
        try:
            short = _history(tokenizer, turn, sizes[0])
            row["first delta, ms"] = _ms(lambda t=tokenizer, n=new, s=sampled, h=short: _delta(t, n, s, h))  # type: ignore[misc]
            proof = tokenizer.delta_proof([new], history=short, tools=TOOLS)
            row["analysis, ms"] = _analysis(tokenizer, new, short)
            row["short cut"] = "joined" if proof.parts else "smaller context" if proof.independent else "rule"
            for size in sizes:
                history = _history(tokenizer, turn, size)
                call = lambda t=tokenizer, n=new, s=sampled, h=history: _delta(t, n, s, h)  # noqa: E731
                first = _ms(call)
                row[f"at {size:,}, ms"] = first if first > LIMIT_MS else min(_ms(call) for _ in range(times))
            row["ratio"] = float(row[f"at {sizes[-1]:,}, ms"]) / float(row[f"at {sizes[0]:,}, ms"])  # type: ignore[arg-type]
        except TemplateRefused as refused:
            row["short cut"] = f"refused: {str(refused)[:60]}"
        rows.append(row)
    return rows


def _delta(tokenizer: ChatTokenizer, new: Message, sampled: Sequence[int], history: Sequence[Message]) -> None:
    tokenizer.render_delta([new], sampled=sampled, history=history, tools=TOOLS)


def _analysis(tokenizer: ChatTokenizer, new: Message, history: Sequence[Message]) -> float:
    """The CPU of a new analysis: this tokenizer has its answer already, so a kwarg that nothing reads asks again."""
    bare = _ms(lambda: tokenizer.delta_proof([new], history=history, tools=TOOLS))
    again = _ms(
        lambda: tokenizer.delta_proof([new], history=history, tools=TOOLS, template_kwargs={"nobody_reads_this": 1})
    )
    return max(0.0, again - bare)


def _history(tokenizer: ChatTokenizer, turn: Message, tokens: int) -> list[Message]:
    """A question, rounds of a call with a long result and an answer, and the turn."""
    length = len(tokenizer.encode(READINGS)) + 30
    rounds = [CALL, _result(READINGS), ANSWER, QUESTION] * max(1, tokens // length)
    return [{"role": "system", "content": "You are at a plant."}, QUESTION, *rounds, turn]


def _ms(call: Callable[[], object]) -> float:
    started = time.thread_time()
    call()
    return (time.thread_time() - started) * 1000


def main() -> None:
    """Measures every tokenizer that is laid out and prints a table."""
    options = parser("deltas", __doc__)
    options.add_argument("tokenizers", nargs="*", help="names or directories; default: tiny and what is laid out")
    chosen = options.parse_args()
    found = [
        str(folder)
        for room in LAID_OUT
        for folder in sorted(Path(room).glob("*"))
        if (folder / "tokenizer.json").exists()
    ]
    sizes, times = ((SIZES[0], 8_000), 5) if chosen.quick else (SIZES, TIMES)
    rows: list[Row] = []
    for name in chosen.tokenizers or [TINY, *found]:
        try:
            rows += measure(name, sizes, times)
        except TemplateMissing:
            continue  # A base model's.
    analyses = [float(row["analysis, ms"]) for row in rows if "analysis, ms" in row]  # type: ignore[arg-type]
    for role in ("user", "tool"):
        cuts = [str(row["short cut"]) for row in rows if row["role"] == role]
        taken = sum(not cut.startswith("refused") for cut in cuts)
        joined, smaller = cuts.count("joined"), cuts.count("smaller context")
        print(
            f"{role}: {taken} of {len(cuts)} templates take it; {joined + smaller} are proved independent of history "
            f"({(joined + smaller) / max(1, taken):.1%}), {joined} are joined ({joined / max(1, taken):.1%})"
        )
    print(f"analysis: median {median(analyses):.1f}, worst {max(analyses):.1f} ms")
    emit(
        "deltas",
        rows,
        chosen,
        title="What a delta costs, template by template",
        measures="Milliseconds of CPU: loading, the first delta, reading the template, and one more delta behind "
        f"{sizes[0]:,} and {sizes[-1]:,} tokens of history.",
        leaves_out="The model, the network, and what the comparisons with the rule cost, which become rarer with use.",
    )


if __name__ == "__main__":
    main()
