"""The one hand-written renderer: tool outputs of the DeepSeek-V3 family, whose own template cannot write them.

That template forgets to close a single call, to close the outputs in front of a user message, and lets loop flags
leak over turns. What it documents is an outputs block around the single outputs, joined by newlines; a header for
the policy follows only behind a user message. Recognised by the four control tokens, not by a name.
"""

from collections.abc import Sequence

from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.errors import HistoryRewritten
from rolloutpool_common.rendering.template import Message

__all__ = ["applies", "outputs_block"]

_BLOCK = ("<\uff5ctool▁outputs▁begin\uff5c>", "<\uff5ctool▁outputs▁end\uff5c>")
_OUTPUT = ("<\uff5ctool▁output▁begin\uff5c>", "<\uff5ctool▁output▁end\uff5c>")


def applies(codec: Codec) -> bool:
    """Whether this tokenizer's template writes outputs blocks."""
    return codec.control_ids.keys() >= {*_BLOCK, *_OUTPUT}


def outputs_block(results: Sequence[Message], codec: Codec, *, after: str) -> list[int]:
    """Ids of the tool results behind a turn that ended with the control string `after`. Raises TemplateRefused."""
    texts = []
    for message in results:
        if not isinstance(message["content"], str):
            raise HistoryRewritten("DeepSeek tool outputs are text; this tool message's content is not a string.")
        texts.append(_OUTPUT[0] + codec.guard.value(message["content"]) + _OUTPUT[1])
    return codec.encode_rendered(_BLOCK[0] + "\n".join(texts) + _BLOCK[1], after=after)
