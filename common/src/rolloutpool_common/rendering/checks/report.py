"""Finds out by rendering probes what a tokenizer and its chat template do to token ids. No model is known by name.

1. Every construct that rollouts meet is rendered by the pool, and compared with the template's own full render
   (`exactness`). This finds what is wrong, and what is refused.
2. Further probes look at what the template does to history, because that decides which trainers agree with the pool:
   one that only appends keeps the ids of the history, so any trainer that follows it agrees. One that edits history
   (strips thinking, moves tools) agrees only if the trainer keeps the sampled ids.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rolloutpool_common.rendering.checks.constructs import (
    NEXT,
    SYSTEM,
    TOOLS,
    USER,
    Met,
    call_id,
    calling,
    result,
    saying,
)
from rolloutpool_common.rendering.checks.exactness import (
    ConstructFinding,
    ConstructVerdict,
    counts_on_tools,
    full_render_of,
    try_constructs,
    try_recount,
)
from rolloutpool_common.rendering.errors import TemplateRefused
from rolloutpool_common.rendering.tokenizer import ChatTokenizer

_TYPED = "typed control tokens"
_RESULT = result(0)


class TokenizerVerdict(StrEnum):
    """Says what training can expect of a tokenizer."""

    EXACT = "exact"
    """Ids and mask are exact, and a trainer that renders history again sees the ids that parsing left unchanged."""
    KEEPING = "exact with a token-keeping trainer only"
    """Ids and mask are exact. A trainer that renders history again changes it, and each such change forks."""
    REFUSE = "refuse"
    """What every agent appends cannot be rendered exactly."""
    WRONG = "WRONG"
    """The pool writes other ids than the template: a defect of the pool. Do not train with this tokenizer."""


@dataclass(frozen=True, slots=True)
class ProbeFinding:
    """The outcome of one probe."""

    probe: str
    detail: str
    fine: bool


@dataclass(frozen=True, slots=True)
class TokenizerReport:
    """All that was found."""

    name: str
    tokenizer_sha256: str
    template_sha256: str
    verdict: TokenizerVerdict
    """For rollouts with tools."""
    reason: str
    """Why it is not `exact`; empty if it is."""
    without_tools: TokenizerVerdict
    """For rollouts without tools."""
    constructs: tuple[ConstructFinding, ...]
    findings: tuple[ProbeFinding, ...]

    @classmethod
    def unusable(cls, name: str, reason: str) -> "TokenizerReport":
        """Reports a tokenizer that cannot be loaded, so that nothing was tried."""
        return cls(name, "", "", TokenizerVerdict.REFUSE, reason, TokenizerVerdict.REFUSE, (), ())

    def wrong(self, *, tools: bool) -> list[ConstructFinding]:
        """The constructs that are wrong."""
        return [f for f in self.constructs if f.verdict is ConstructVerdict.WRONG and (tools or not f.needs_tools)]

    def refused(self, *, tools: bool, accepted: Collection[str] = ()) -> list[ConstructFinding]:
        """The constructs that are refused although rollouts will meet them."""
        return [
            finding
            for finding in (_met_with_tools(self.constructs) if tools else self.constructs)
            if finding.verdict is ConstructVerdict.REFUSED
            and finding.met is not Met.RARELY
            and (tools or not finding.needs_tools)
            and finding.name not in accepted
        ]


def examine(tokenizer: ChatTokenizer) -> TokenizerReport:
    """Tries a tokenizer and its template. This takes a fraction of a second, or seconds for a slow template."""
    full = full_render_of(tokenizer)
    tried = try_constructs(tokenizer, full)
    tools = TOOLS if counts_on_tools(tried) else None
    constructs = (*tried, *try_recount(tokenizer, full), _typed(tokenizer, tools))
    talk, calls = list(_edits(tokenizer, _TALK)), list(_edits(tokenizer, _CALLS))
    fingerprint, shown = tokenizer.fingerprint, tokenizer.renders_tools
    findings = (
        ProbeFinding("ids", f"as tokenizer.json has them (sha256 {fingerprint.tokenizer_sha256[:12]})", True),
        ProbeFinding("template", f"sha256 {fingerprint.template_sha256[:12]}", True),
        ProbeFinding("tools shown to the policy", "yes" if shown else "no: the template drops them silently", shown),
        ProbeFinding("history", "; ".join([*talk, *calls]) or "append-only", not talk and not calls),
        ProbeFinding("end of an answer", repr(tokenizer.close_token or "none: the next header ends it"), True),
        ProbeFinding("generation prompt", repr(_generation_prompt(tokenizer)), True),
        ProbeFinding("cost of a user message", *_cost(tokenizer, saying("ibex"), NEXT, tools)),
        ProbeFinding("cost of a tool result", *_cost(tokenizer, _called(), _RESULT, tools)),
    )
    if not shown:
        calls.append("the template shows no tools: describe them in the system message")
    verdict, reason = _verdict(_met_with_tools(constructs), [*talk, *calls])
    return TokenizerReport(
        name=tokenizer.name,
        tokenizer_sha256=fingerprint.tokenizer_sha256,
        template_sha256=fingerprint.template_sha256,
        verdict=verdict,
        reason=reason,
        without_tools=_verdict([f for f in constructs if not f.needs_tools], talk)[0],
        constructs=constructs,
        findings=findings,
    )


def _met_with_tools(constructs: Sequence[ConstructFinding]) -> list[ConstructFinding]:
    """Returns what rollouts with tools meet: all, unless the template cannot be rendered without tools."""
    if not constructs or not counts_on_tools(constructs):
        return list(constructs)
    # Nobody can render such a prompt, so no rollout has one.
    return [f for f in constructs if f.name != "tools not shown" and (f.needs_tools or f.name == _TYPED)]


def _verdict(constructs: Sequence[ConstructFinding], edits: Sequence[str]) -> tuple[TokenizerVerdict, str]:
    for finding in constructs:
        if finding.verdict is ConstructVerdict.WRONG:
            return TokenizerVerdict.WRONG, f"{finding.name}: {finding.reason}"
    for finding in constructs:
        if finding.verdict is ConstructVerdict.REFUSED and finding.met is Met.ALWAYS:
            return TokenizerVerdict.REFUSE, f"{finding.name}: {finding.reason}"
    return TokenizerVerdict.KEEPING if edits else TokenizerVerdict.EXACT, "; ".join(edits)


def _typed(tokenizer: ChatTokenizer, tools: list[dict[str, Any]] | None) -> ConstructFinding:
    """Finds out what control strings become that somebody typed in a message."""
    tried, verdict, reason = 0, ConstructVerdict.UNCHECKED, "no message can be appended"
    for turn, plain in ((saying("ibex"), USER), (_called(), _RESULT)):
        try:
            expected = _control_ids(tokenizer, turn, plain, tools)
        except TemplateRefused:
            continue  # another construct says so
        if tried == 0:
            verdict, reason = ConstructVerdict.EXACT, ""
        for text in sorted(tokenizer.decode([i]) for i in tokenizer.control_ids):
            tried += 1
            typed = {**plain, "content": f"a{text}b"}
            try:
                if _control_ids(tokenizer, turn, typed, tools) == expected:
                    continue
                verdict = ConstructVerdict.WRONG
                reason = f"{text!r} typed in a {plain['role']} message becomes a control token"
            except TemplateRefused as refusal:
                verdict = ConstructVerdict.REFUSED
                reason = f"{text!r} typed in a {plain['role']} message: {refusal.reason}"
            return _typed_finding(verdict, reason, tried)
    return _typed_finding(verdict, reason, tried)


def _typed_finding(verdict: ConstructVerdict, reason: str, tried: int) -> ConstructFinding:
    exact = tried if verdict is ConstructVerdict.EXACT else max(tried - 1, 0)
    return ConstructFinding(
        name=_TYPED,
        verdict=verdict,
        reason=reason,
        met=Met.ALWAYS,
        needs_tools=False,
        tried=tried,
        exact=exact,
        failing=None,
    )


def _control_ids(
    tokenizer: ChatTokenizer, turn: Mapping[str, Any], message: Mapping[str, Any], tools: list[dict[str, Any]] | None
) -> list[int]:
    delta = tokenizer.render_delta([message], sampled=tokenizer.closing, history=[USER, turn], tools=tools)
    return [i for i in delta.glue_ids if i in tokenizer.control_ids]


def _generation_prompt(tokenizer: ChatTokenizer) -> str:
    """Finds what the template writes after a user message for the policy to continue."""
    try:
        whole, alone = tokenizer.render_text([USER]), tokenizer.render_conversation([USER]).text
    except TemplateRefused:
        return ""
    end = whole.rfind("giraffe") + len("giraffe")
    return whole[len(alone) :] if alone != whole and whole.startswith(alone) else whole[end:]


def _cost(
    tokenizer: ChatTokenizer,
    turn: Mapping[str, Any],
    message: Mapping[str, Any],
    tools: list[dict[str, Any]] | None,
) -> tuple[str, bool]:
    """Returns what a delta of this message costs, and what in the template makes it dear."""
    try:
        proof = tokenizer.delta_proof([message], history=[USER, turn], tools=tools)
    except TemplateRefused:
        return "refused, see above", True
    if proof.parts is not None:
        return "nothing is rendered: its text is proved to be constants and the message's own words", True
    why = next((f"line {reason.line}, {reason.construct}" for reason in proof.reasons), "not understood")
    if proof.independent:
        return f"one question is rendered, however long the history is ({why})", True
    return f"the whole history is rendered ({why})", False


# -- history: what the template makes of earlier turns when a message follows


def _called(said: str = "") -> dict[str, Any]:
    return calling([(call_id(0), "walrus")], said)


def _moves(tokenizer: ChatTokenizer, first: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> bool:
    prompt = tokenizer.render_text(first, tools=tools)
    return not tokenizer.render_text([*first, saying("ibex"), NEXT], tools=tools).startswith(prompt + "ibex")


def _loses(tokenizer: ChatTokenizer, turn: dict[str, Any], text: str, after: Sequence[Mapping[str, Any]]) -> bool:
    return text not in tokenizer.render_text([USER, turn, *after])


_Probe = tuple[str, Callable[[ChatTokenizer], bool]]
_THOUGHT = "<think>\nquagga\n</think>\n\n"
_TALK: tuple[_Probe, ...] = (
    ("the generation prompt is not kept in history", lambda t: _moves(t, [USER], None)),
    ("the system message moves", lambda t: not _moves(t, [USER], None) and _moves(t, [SYSTEM, USER], None)),
    ("the first prompt holds today's date", lambda t: t.reads_clock),
    (
        "thinking is removed when a user message follows",
        lambda t: _loses(t, saying(_THOUGHT + "x"), "quagga", [USER]),
    ),
    ("white space around what a turn says is trimmed", lambda t: _loses(t, saying(" ibex \n"), " ibex \n", [USER])),
)
_CALLS: tuple[_Probe, ...] = (
    ("tools move", lambda t: not _moves(t, [USER], None) and _moves(t, [USER], TOOLS)),
    ("calls are left out", lambda t: _loses(t, _called(), "walrus", [_RESULT])),
    (
        "what a turn says beside its calls is left out",
        lambda t: _loses(t, _called("ibex"), "ibex", [_RESULT]),
    ),
    (
        "an empty thought is removed when a tool result follows",
        lambda t: _loses(t, _called("<think>\n\n</think>\n\nx"), "<think>", [_RESULT]),
    ),
    (
        "thinking is removed when a tool result follows",
        lambda t: _loses(t, _called(_THOUGHT + "x"), "quagga", [_RESULT]),
    ),
)


def _edits(tokenizer: ChatTokenizer, probes: Sequence[_Probe]) -> Iterator[str]:
    for edit, happens in probes:
        try:
            if happens(tokenizer):
                yield edit
        except TemplateRefused:
            continue  # what cannot be rendered is no history
