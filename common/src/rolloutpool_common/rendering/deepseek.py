"""The one hand-written renderer: tool outputs of the DeepSeek-V3 family, whose own template cannot write them.

That template forgets to close a single call, forgets to close the outputs before a user message, and lets the flags of
its loops leak from turn to turn. The documented form is written here: one block around all outputs, which are joined
by newlines; a header for the policy follows a user message only. A tokenizer is recognised by the four control tokens,
not by its name.
"""

from collections.abc import Sequence

from rolloutpool_common.rendering import sentinel
from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.errors import HistoryRewritten, TemplateRefused
from rolloutpool_common.rendering.template import Message, Template

__all__ = ["applies", "is_broken", "outputs_block"]

_BLOCK = ("<\uff5ctool▁outputs▁begin\uff5c>", "<\uff5ctool▁outputs▁end\uff5c>")
_OUTPUT = ("<\uff5ctool▁output▁begin\uff5c>", "<\uff5ctool▁output▁end\uff5c>")


def applies(codec: Codec) -> bool:
    """Whether this tokenizer's template writes outputs blocks."""
    return codec.control_ids.keys() >= {*_BLOCK, *_OUTPUT}


def is_broken(template: Template) -> bool:
    """Whether the template itself fails at a tool result: an output opened and closed once each, then a header."""
    result = {"role": "tool", "name": "f", "tool_call_id": "call00000", "content": "r"}
    for as_text, silent in ((False, True), (True, True), (False, False), (True, False)):
        turn = sentinel.turn([("call00000", "f")], arguments_as_text=as_text, silent=silent)
        conversation = [{"role": "user", "content": "x"}, turn, result]
        try:
            prompt = sentinel.after_sentinel(template.render(conversation))
            bare = sentinel.after_sentinel(template.render(conversation, generation_prompt=False))
        except TemplateRefused:
            continue
        if prompt is not None and bare is not None and prompt != bare:
            return any(prompt.count(text) != 1 for text in (*_BLOCK, *_OUTPUT))
    return True


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
