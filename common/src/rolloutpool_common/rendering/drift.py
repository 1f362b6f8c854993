"""Names the difference between the prompt a policy saw and the ledger. A wrong label never changes a mask.

Labels are heuristics for people and metrics. Call `classify` before `TokenLedger.accept_echo`, which changes the
ledger. `verify_prompt_contains` is the other check, of the first prompt: is it made with this tokenizer at all.
"""

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rolloutpool_common.errors import TokenizerMismatch
from rolloutpool_common.protocol.drift import DriftLabel
from rolloutpool_common.rendering.errors import TemplateRefused
from rolloutpool_common.rendering.template import Message
from rolloutpool_common.rendering.tokenizer import ChatTokenizer
from rolloutpool_common.tokens.comparison import EchoKind
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_common.tokens.segments import Segment, SegmentKind

__all__ = ["classify", "verify_prompt_contains"]

_CALL_MARKUP = (
    "<tool_call",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<\uff5ctool▁call",
    "<function",
    '"arguments"',
    '"parameters"',
)


def classify(ledger: TokenLedger, echo_ids: Sequence[int], tokenizer: ChatTokenizer, *, prefix: int = 0) -> DriftLabel:
    """The label of an echoed prompt; `echo_ids` and `prefix` as in `TokenLedger.compare`."""
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


def verify_prompt_contains(tokenizer: ChatTokenizer, echo_ids: Sequence[int], messages: Sequence[Message]) -> None:
    """Check that the first echoed prompt, decoded, holds what the system and user messages say.

    White space, Unicode normalisation and JSON escapes are left out of the comparison, and so is a message that this
    tokenizer's own template does not print either. Raises TokenizerMismatch.
    """
    seen = _comparable(tokenizer.decode(echo_ids))
    missing = [i for i, m in enumerate(messages) if m.get("role") in ("system", "user") and not _says(seen, m)]
    if missing:
        try:
            own = _comparable(tokenizer.decode(tokenizer.render_prompt(messages)))
        except TemplateRefused:
            own = seen
        missing = [i for i in missing if _says(own, messages[i]) or own == seen]
    if missing:
        raise TokenizerMismatch(
            f"The trainer's first prompt ({len(echo_ids)} ids), decoded with this worker's tokenizer "
            f"{tokenizer.name!r} (tokenizer.json {tokenizer.fingerprint.tokenizer_sha256[:12]}, template "
            f"{tokenizer.fingerprint.template_sha256[:12]}), does not contain the messages at {missing}. The trainer "
            "uses another tokenizer, or other messages; give `tokenizer_name` the model that it serves."
        )


def _run_at(segments: Sequence[Segment], position: int) -> list[Segment]:
    """The segment at a position, with its neighbours if all of them are one sampled turn."""
    at = next(segment for segment in segments if segment.start <= position < segment.end)
    if at.kind is not SegmentKind.SAMPLED:
        return [at]
    return [s for s in segments if s.kind is SegmentKind.SAMPLED and s.turn == at.turn]


def _sampled_label(ours: list[int], theirs: list[int], offset: int, tokenizer: ChatTokenizer) -> DriftLabel:
    """The first rule that holds; the order matters."""
    our_ids, their_ids = _before(ours, tokenizer.close_id), _before(theirs, tokenizer.close_id)
    our_text, their_text = tokenizer.decode(our_ids), tokenizer.decode(their_ids)
    bare = tokenizer.decode(_unstopped(our_ids, tokenizer.stop_ids))
    last_without_close = offset == len(ours) - 1 and len(our_ids) == len(ours)
    has_thinking = "</think>" in our_text or "</think>" in their_text
    rules: Iterable[tuple[bool, DriftLabel]] = (
        ("\ufffd" in our_text, DriftLabel.REPLACEMENT_CHAR),
        (our_text == their_text and last_without_close, DriftLabel.CLOSE_TOKEN_CHANGED),
        (our_text == their_text, DriftLabel.RETOKENIZED_SAME_TEXT),
        (_nfc(our_text) == _nfc(their_text), DriftLabel.UNICODE_NORMALISED),
        (has_thinking and _answer(our_text) == _answer(their_text), DriftLabel.THINKING_STRIPPED),
        (_dense(our_text) == _dense(their_text) and "{" in our_text, DriftLabel.TOOL_CALL_RESERIALISED),
        (_dense(our_text) == _dense(their_text), DriftLabel.WHITESPACE_TRIMMED),
        (bare == their_text, DriftLabel.CLOSE_TOKEN_CHANGED),
        (any(markup in our_text for markup in _CALL_MARKUP), DriftLabel.TOOL_CALL_RESERIALISED),
        (offset == len(theirs), DriftLabel.HISTORY_SHORTENED),
    )
    return next((label for holds, label in rules if holds), DriftLabel.ASSISTANT_TEXT_CHANGED)


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


def _comparable(text: str) -> str:
    return _dense(unicodedata.normalize("NFKC", text))


def _says(seen: str, message: Mapping[str, Any]) -> bool:
    """Whether a text holds the message's content, as it is or inside JSON."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return all(
        _comparable(text) in seen
        or _comparable(json.dumps(text, ensure_ascii=False)[1:-1]) in seen
        or _comparable(json.dumps(text)[1:-1]) in seen
        for text in texts
        if isinstance(text, str)
    )
