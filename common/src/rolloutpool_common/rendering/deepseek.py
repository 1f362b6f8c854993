"""The one hand-written renderer: tool outputs of the DeepSeek-V3 family, whose own template cannot write them.

That template forgets to close a single call, forgets to close the outputs before a user message, and lets the flags of
its loops leak from turn to turn. The documented form is written here: one block around all outputs, which are joined
by newlines; a header for the policy follows a user message only. A tokenizer is recognised by the four control tokens,
not by its name, and a template of such a tokenizer is used itself wherever it works (`is_broken`).
"""

import re
from collections.abc import Sequence

from rolloutpool_common.rendering import sentinel
from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.errors import HistoryRewritten, TemplateRefused
from rolloutpool_common.rendering.template import Message, Template

__all__ = ["applies", "is_broken", "outputs_block"]

_BLOCK = ("<\uff5ctool▁outputs▁begin\uff5c>", "<\uff5ctool▁outputs▁end\uff5c>")
_OUTPUT = ("<\uff5ctool▁output▁begin\uff5c>", "<\uff5ctool▁output▁end\uff5c>")
_PARTS = re.compile("|".join(map(re.escape, (*_BLOCK, *_OUTPUT))))
_CLOSED = re.compile(f"(?:{_BLOCK[0]}(?:{''.join(_OUTPUT)})+{_BLOCK[1]})+")
"""Blocks with at least one output each. `_PARTS` leaves out what stands between them."""


def applies(codec: Codec) -> bool:
    """Whether this tokenizer's template writes outputs blocks."""
    return codec.control_ids.keys() >= {*_BLOCK, *_OUTPUT}


def is_broken(template: Template, close: str) -> bool:
    """Tells whether a template tries to write such blocks and fails.

    Later members of the family write outputs without a block, although their tokenizers have its tokens. What a
    template refuses, it does not write wrongly: others take one call a turn, or no user directly after outputs. Their
    rollouts are refused where they do that, and their other outputs are the template's own.

    Args:
        template: Of a tokenizer to which `applies` applies.
        close: The control string that ends an answer.
    """
    if any(text not in template.source for text in (*_BLOCK, *_OUTPUT)):
        return False
    forms = ((False, True), (True, True), (False, False), (True, False))
    found = [_writes_blocks(template, close, as_text, silent) for as_text, silent in forms]
    return True not in found and False in found


def _writes_blocks(template: Template, close: str, as_text: bool, silent: bool) -> bool | None:
    """Whether each turn is closed before its outputs, and whatever is opened there is closed before what follows.

    Returns:
        None where the template refuses all that is tried.
    """
    user, wrote = {"role": "user", "content": "x"}, None
    for outputs, follower in ((1, []), (2, []), (1, [user])):
        ids = [f"call{i:05d}" for i in range(outputs)]
        turn = sentinel.turn([(made, "f") for made in ids], arguments_as_text=as_text, silent=silent)
        results = [{"role": "tool", "name": "f", "tool_call_id": made, "content": "r"} for made in ids]
        try:
            text = sentinel.after_sentinel(template.render([user, turn, *results, *sentinel.marked(follower)]))
        except TemplateRefused:
            continue
        if text is None:
            return False
        turn_end, _, rest = text[: sentinel.first_marker(text)].partition(_BLOCK[0])
        found = _PARTS.findall(_BLOCK[0] + rest)
        if close not in turn_end or found.count(_OUTPUT[0]) != outputs or not _CLOSED.fullmatch("".join(found)):
            return False
        wrote = True
    return wrote


def outputs_block(results: Sequence[Message], codec: Codec, *, after: str) -> list[int]:
    """Renders tool results.

    Args:
        results: The tool messages, in order.
        codec: Encodes them.
        after: The control string that ended the policy's turn.

    Returns:
        The ids of the block.

    Raises:
        TemplateRefused: The content of a message is no text, or cannot be encoded safely.
    """
    texts = []
    for message in results:
        if not isinstance(message["content"], str):
            raise HistoryRewritten("DeepSeek tool outputs are text; this tool message's content is not a string.")
        texts.append(_OUTPUT[0] + codec.escaper.value(message["content"]) + _OUTPUT[1])
    return codec.encode_rendered(_BLOCK[0] + "\n".join(texts) + _BLOCK[1], after=after)
