"""Finds out by rendering probes what a tokenizer and its chat template do to token ids. No model is known by name.

There are three kinds of templates:

- One that only appends keeps the ids of the history, so that any trainer that follows it agrees with the pool.
- One that edits history (strips thinking, moves tools) agrees only if the trainer keeps the sampled ids.
- One that cannot append what an agent appends is refused, and so is every rollout that needs it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rolloutpool_common.rendering.errors import TemplateRefused
from rolloutpool_common.rendering.tokenizer import ChatTokenizer

__all__ = ["ProbeFinding", "TokenizerReport", "TokenizerVerdict", "examine"]

_USER = {"role": "user", "content": "giraffe"}
_NEXT = {"role": "user", "content": "heron"}
_SYSTEM = {"role": "system", "content": "zebra"}
_IDS = ("callAAAAA", "callBBBBB")
_RESULTS = [{"role": "tool", "name": "weigh", "tool_call_id": i, "content": "ostrich"} for i in _IDS]
_TOOL = {
    "type": "function",
    "function": {"name": "weigh", "description": "Weigh it", "parameters": {"type": "object", "properties": {}}},
}
_APPENDED: tuple[tuple[str, list[dict[str, str]]], ...] = (
    ("user message", [_USER]),
    ("tool result", _RESULTS[:1]),
    ("parallel results", _RESULTS),
    ("result, then user", [*_RESULTS[:1], _USER]),
    ("late system message", [_SYSTEM]),
)


class TokenizerVerdict(StrEnum):
    """What training can expect of a tokenizer."""

    EXACT = "exact"
    """Ids and mask are exact, and a trainer that renders history again sees the ids that parsing left unchanged."""
    KEEPING = "exact with a token-keeping trainer only"
    """Ids and mask are exact. A trainer that renders history again changes it, and each such change forks."""
    REFUSE = "refuse"
    """What an agent appends cannot be rendered exactly."""


@dataclass(frozen=True, slots=True)
class ProbeFinding:
    """The outcome of one probe."""

    probe: str
    detail: str
    fine: bool


@dataclass(frozen=True, slots=True)
class TokenizerReport:
    """All that the probes found."""

    name: str
    findings: tuple[ProbeFinding, ...]
    verdict: TokenizerVerdict
    """For rollouts with tools."""
    reason: str
    """Why it is not `exact`; empty if it is."""
    without_tools: TokenizerVerdict
    """For rollouts without tools."""


def examine(tokenizer: ChatTokenizer) -> TokenizerReport:
    """Probes a tokenizer. This takes about a second.

    Args:
        tokenizer: From `load_tokenizer`, which has checked its ids against its tokenizer.json.
    """
    appended = {label: _appended(tokenizer, messages) for label, messages in _APPENDED}
    talk, calls = list(_edits(tokenizer, _TALK)), list(_edits(tokenizer, _CALLS))
    unsafe = _unsafe(tokenizer)
    fingerprint = tokenizer.fingerprint
    findings = (
        ProbeFinding("ids", f"as tokenizer.json has them (sha256 {fingerprint.tokenizer_sha256[:12]})", True),
        ProbeFinding("template", f"sha256 {fingerprint.template_sha256[:12]}", True),
        ProbeFinding(
            "tools shown to the policy", *_yes(tokenizer.renders_tools, "no: the template drops them silently")
        ),
        *(
            ProbeFinding(f"append {label}", f"refused: {refusal}" if refusal else "exact", not refusal)
            for label, refusal in appended.items()
        ),
        ProbeFinding("history", "; ".join([*talk, *calls]) or "append-only", not talk and not calls),
        ProbeFinding("end of an answer", repr(tokenizer.close_token or "none: the next header ends it"), True),
        ProbeFinding("generation prompt", repr(_generation_prompt(tokenizer)), True),
        ProbeFinding("typed control tokens", unsafe or "become plain text", not unsafe),
    )
    refused_talk = appended["user message"] or unsafe
    refused = appended["tool result"] or unsafe
    if not tokenizer.renders_tools and not refused:
        calls.append("the template shows no tools: describe them in the system message")
    return TokenizerReport(
        name=tokenizer.name,
        findings=findings,
        verdict=_verdict(refused, [*talk, *calls]),
        reason=refused or "; ".join([*talk, *calls]),
        without_tools=_verdict(refused_talk, talk),
    )


def _verdict(refused: str, edits: Sequence[str]) -> TokenizerVerdict:
    return TokenizerVerdict.REFUSE if refused else TokenizerVerdict.KEEPING if edits else TokenizerVerdict.EXACT


def _yes(holds: bool, otherwise: str) -> tuple[str, bool]:
    return ("yes" if holds else otherwise), holds


def _appended(tokenizer: ChatTokenizer, messages: Sequence[Mapping[str, Any]]) -> str:
    """Says why the messages cannot be appended; empty if they can."""
    try:
        tokenizer.render_delta(messages, sampled=tokenizer.closing)
    except TemplateRefused as refusal:
        return refusal.reason
    return ""


def _unsafe(tokenizer: ChatTokenizer) -> str:
    """Says what typed control strings become, if not plain text; empty if they do become plain text."""
    for role, plain in (("user", _USER), ("tool", _RESULTS[0])):
        if _appended(tokenizer, [plain]):
            continue
        expected = _control_ids(tokenizer, plain)
        for text in sorted(tokenizer.decode([i]) for i in tokenizer.control_ids):
            try:
                found = _control_ids(tokenizer, {**plain, "content": f"a{text}b"})
            except TemplateRefused as refusal:
                return f"{text!r} typed in a {role} message is refused: {refusal.reason}"
            if found != expected:
                return f"{text!r} typed in a {role} message becomes a control token"
    return ""


def _control_ids(tokenizer: ChatTokenizer, message: Mapping[str, Any]) -> list[int]:
    delta = tokenizer.render_delta([message], sampled=tokenizer.closing)
    return [i for i in delta.glue_ids if i in tokenizer.control_ids]


def _generation_prompt(tokenizer: ChatTokenizer) -> str:
    """Finds what the template writes after a user message for the policy to continue."""
    try:
        whole, alone = tokenizer.render_text([_USER]), tokenizer.render_conversation([_USER]).text
    except TemplateRefused:
        return ""
    end = whole.rfind("giraffe") + len("giraffe")
    return whole[len(alone) :] if alone != whole and whole.startswith(alone) else whole[end:]


# -- history: what the template makes of earlier turns when a message follows


def _said(text: str, *, calls: int = 0) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        turn["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": "weigh", "arguments": {"animal": "walrus"}}}
            for i in _IDS[:calls]
        ]
    return turn


def _moves(tokenizer: ChatTokenizer, first: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> bool:
    prompt = tokenizer.render_text(first, tools=tools)
    return not tokenizer.render_text([*first, _said("ibex"), _NEXT], tools=tools).startswith(prompt + "ibex")


def _loses(tokenizer: ChatTokenizer, turn: dict[str, Any], text: str, after: Sequence[Mapping[str, Any]]) -> bool:
    return text not in tokenizer.render_text([_USER, turn, *after])


_Probe = tuple[str, Callable[[ChatTokenizer], bool]]
_THOUGHT = "<think>\nquagga\n</think>\n\n"
_TALK: tuple[_Probe, ...] = (
    ("the generation prompt is not kept in history", lambda t: _moves(t, [_USER], None)),
    ("the system message moves", lambda t: not _moves(t, [_USER], None) and _moves(t, [_SYSTEM, _USER], None)),
    ("the first prompt holds today's date", lambda t: t.reads_clock),
    ("thinking is removed when a user message follows", lambda t: _loses(t, _said(_THOUGHT + "x"), "quagga", [_USER])),
    ("white space around what a turn says is trimmed", lambda t: _loses(t, _said(" ibex \n"), " ibex \n", [_USER])),
)
_CALLS: tuple[_Probe, ...] = (
    ("tools move", lambda t: not _moves(t, [_USER], None) and _moves(t, [_USER], [_TOOL])),
    ("calls are left out", lambda t: _loses(t, _said("", calls=1), "walrus", _RESULTS[:1])),
    (
        "what a turn says beside its calls is left out",
        lambda t: _loses(t, _said("ibex", calls=1), "ibex", _RESULTS[:1]),
    ),
    (
        "an empty thought is removed when a tool result follows",
        lambda t: _loses(t, _said("<think>\n\n</think>\n\nx", calls=1), "<think>", _RESULTS[:1]),
    ),
    (
        "thinking is removed when a tool result follows",
        lambda t: _loses(t, _said(_THOUGHT + "x", calls=1), "quagga", _RESULTS[:1]),
    ),
)


def _edits(tokenizer: ChatTokenizer, probes: Sequence[_Probe]) -> Iterator[str]:
    for edit, happens in probes:
        try:
            if happens(tokenizer):
                yield edit
        except TemplateRefused:
            continue  # what cannot be rendered is no history
