"""Names how the prompt that a trainer reports differs from the pool's ledger.

The label depends on where the two differ first: in the first prompt, in text of tools or template, or inside a turn
that the policy sampled. In the last case the turn's text is compared in ways that get coarser and coarser, and the
first that fits gives the label. Labels are for people and metrics; a wrong one never changes a mask. Call `classify`
before `TokenLedger.accept_echo`, which changes the ledger.

`verify_prompt_contains` is a check of the first prompt: was it rendered with this tokenizer at all?
"""

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rolloutpool_common.errors import TokenizerMismatch
from rolloutpool_common.protocol.drift import DriftLabel
from rolloutpool_common.rendering.errors import TemplateRefused, TypedTextChanged
from rolloutpool_common.rendering.template import Message, Tools, normalise
from rolloutpool_common.rendering.tokenizer import ChatTokenizer
from rolloutpool_common.tokens.comparison import EchoKind
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_common.tokens.segments import Segment, SegmentKind

_CALL_MARKUP = (
    "<tool_call",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<\uff5ctool▁call",
    "<function",
    '"arguments"',
    '"parameters"',
)
_CALL_ENDS = ("</tool_call>", "</function>", "<\uff5ctool▁calls▁end\uff5c>")


def classify(ledger: TokenLedger, echo_ids: Sequence[int], tokenizer: ChatTokenizer, *, prefix: int = 0) -> DriftLabel:
    """Finds the label of an echoed prompt."""
    verdict = ledger.compare(echo_ids, prefix=prefix)
    position = verdict.first_difference
    if position is None:
        return DriftLabel.NONE
    ours = ledger.ids
    theirs = [*ours[:prefix], *echo_ids]
    if verdict.kind is EchoKind.TAIL:
        if not ledger.head:
            return DriftLabel.PROMPT_REWRITTEN
        same = tokenizer.decode(ours[ledger.head :]) == tokenizer.decode(theirs[ledger.head :])
        return DriftLabel.INJECTED_CONTROL_TOKEN if same else DriftLabel.GLUE_REWRITTEN
    run = _run_at(ledger.segments, position)
    if run[0].kind is not SegmentKind.SAMPLED:
        prompt = run[0].kind is SegmentKind.PROMPT
        return DriftLabel.PROMPT_REWRITTEN if prompt else DriftLabel.GLUE_REWRITTEN
    start, end = run[0].start, run[-1].end
    return _sampled_label(ours[start:end], theirs[start:], position - start, tokenizer)


def verify_prompt_contains(
    tokenizer: ChatTokenizer,
    echo_ids: Sequence[int],
    messages: Sequence[Message],
    *,
    tools: Tools | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Checks that the first echoed prompt, decoded, holds what the system and user messages say.

    White space, Unicode normalisation and JSON escapes are not compared. A message that this tokenizer's own template
    does not print is not looked for.
    """
    seen = comparable(tokenizer.decode(echo_ids))
    missing = [i for i, m in enumerate(messages) if m.get("role") in ("system", "user") and not _says(seen, m)]
    # Some templates can be rendered with tools only, and some write messages otherwise then.
    for shown in (tools, None) if tools else (None,):
        if not missing:
            return
        try:
            ids = tokenizer.render_prompt(messages, tools=shown, template_kwargs=template_kwargs)
            own = comparable(tokenizer.decode(ids))
        except TypedTextChanged:
            # It can be rendered all the same, only not told apart what was typed.
            own = comparable(tokenizer.render_text(normalise(messages), tools=shown, template_kwargs=template_kwargs))
        except TemplateRefused:
            continue
        # What this tokenizer's own template leaves out proves nothing against the trainer's.
        missing = [] if own == seen else [i for i in missing if _says(own, messages[i])]
    if missing:
        raise TokenizerMismatch(
            f"The trainer's first prompt ({len(echo_ids)} ids), decoded with this worker's tokenizer "
            f"{tokenizer.name!r} (tokenizer.json {tokenizer.fingerprint.tokenizer_sha256[:12]}, template "
            f"{tokenizer.fingerprint.template_sha256[:12]}), does not contain the messages at {missing}. The trainer "
            "uses another tokenizer, or other messages; give `tokenizer_name` the model that it serves."
        )


def _run_at(segments: Sequence[Segment], position: int) -> list[Segment]:
    """Finds the segment at a position; of a sampled turn all its segments."""
    at = next(segment for segment in segments if segment.start <= position < segment.end)
    if at.kind is not SegmentKind.SAMPLED:
        return [at]
    return [s for s in segments if s.kind is SegmentKind.SAMPLED and s.turn == at.turn]


def _sampled_label(ours: list[int], theirs: list[int], offset: int, tokenizer: ChatTokenizer) -> DriftLabel:
    """Returns the label of the first rule that holds. The order matters: from the narrowest rule to the widest."""
    our_ids, their_ids = _before(ours, tokenizer.close_id), _before(theirs, tokenizer.close_id)
    our_text, their_text = tokenizer.decode(our_ids), tokenizer.decode(their_ids)
    bare = tokenizer.decode(_unstopped(our_ids, tokenizer.stop_ids))
    last_without_close = offset == len(ours) - 1 and len(our_ids) == len(ours)
    has_thinking = "</think>" in our_text or "</think>" in their_text
    calls = _calls_of(our_text)
    rules: Iterable[tuple[bool, DriftLabel]] = (
        ("\ufffd" in our_text, DriftLabel.REPLACEMENT_CHAR),
        (our_text == their_text and last_without_close, DriftLabel.CLOSE_TOKEN_CHANGED),
        (our_text == their_text, DriftLabel.RETOKENIZED_SAME_TEXT),
        (_nfc(our_text) == _nfc(their_text), DriftLabel.UNICODE_NORMALISED),
        (has_thinking and _answer(our_text) == _answer(their_text), DriftLabel.THINKING_STRIPPED),
        (_dense(our_text) == _dense(their_text) and calls not in their_text, DriftLabel.TOOL_CALL_RESERIALISED),
        (_dense(our_text) == _dense(their_text), DriftLabel.WHITESPACE_TRIMMED),
        (bare == their_text, DriftLabel.CLOSE_TOKEN_CHANGED),
        (_parts_in_calls(our_text, their_text, calls), DriftLabel.TOOL_CALL_RESERIALISED),
        (offset == len(theirs), DriftLabel.HISTORY_SHORTENED),
    )
    return next((label for holds, label in rules if holds), DriftLabel.ASSISTANT_TEXT_CHANGED)


def _calls_of(text: str) -> str:
    """Returns the part of a turn from its first call to the end of its last; "" where it makes none."""
    start = min((at for markup in _CALL_MARKUP if (at := text.find(markup)) >= 0), default=len(text))
    if text[start : start + 1] == '"':
        # A call without markup is the object that has this key.
        start = max(text.rfind("{", 0, start), 0)
    end = max(text.rfind(mark) + len(mark) if mark in text else 0 for mark in _CALL_ENDS)
    return text[start : end if end > start else len(text)]


def _parts_in_calls(ours: str, theirs: str, calls: str) -> bool:
    """Tells whether two texts of a turn part in its calls, and not in the text beside them.

    White space does not count. Where a template prints calls alone, the text before them is gone: that comes of the
    calls too.
    """
    if not calls:
        return False
    before, seen = _dense(ours.partition(calls)[0]), _dense(theirs)
    if seen.startswith(before):
        return not seen.startswith(before + _dense(calls))
    their_calls = _calls_of(theirs)
    return bool(their_calls) and not theirs.partition(their_calls)[0].strip()


def _before(ids: list[int], close_id: int | None) -> list[int]:
    return ids[: ids.index(close_id)] if close_id is not None and close_id in ids else ids


def _unstopped(ids: list[int], stop_ids: frozenset[int]) -> list[int]:
    end = len(ids)
    while end and ids[end - 1] in stop_ids:
        end -= 1
    return ids[:end]


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _answer(text: str) -> str:
    return text.rpartition("</think>")[2].strip()


def _dense(text: str) -> str:
    return "".join(text.split())


def comparable(text: str) -> str:
    """Returns a text without white space and in a normal form of Unicode, for `holds`."""
    return _dense(unicodedata.normalize("NFKC", text))


def _says(seen: str, message: Mapping[str, Any]) -> bool:
    """Whether a text holds the message's content, as it is or inside JSON."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return all(holds(seen, text) for text in texts if isinstance(text, str))


def holds(seen: str, text: str) -> bool:
    """Tells whether a text, as it is or inside JSON, is part of what `comparable` gave."""
    return (
        comparable(text) in seen
        or comparable(json.dumps(text, ensure_ascii=False)[1:-1]) in seen
        or comparable(json.dumps(text)[1:-1]) in seen
    )
