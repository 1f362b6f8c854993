"""Which tokens a chat completion's choice says were sampled, and how likely they were.

In this order: `token_ids`; entries `token_id:<n>`; entries that are pieces of the vocabulary. Text is never
tokenised: what a server decoded cannot be turned back into the ids that it sampled, and on some vocabularies a
lookup of decoded text gives wrong ids without an error. Choices are `openai` objects or plain dicts.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_rl.errors import ChoiceIncomplete, ChoiceRefused, TokenUnknown

__all__ = ["field", "logprobs_of", "sampled_ids", "token_array"]

_TOKEN_ID = re.compile(r"token_id:([0-9]+)")
_INT32_END = 2**31


def field(choice: Any, name: str) -> Any:
    """A field of an object or of a mapping; None where there is none."""
    return choice.get(name) if isinstance(choice, Mapping) else getattr(choice, name, None)


def sampled_ids(choice: Any, tokenizer: ChatTokenizer) -> npt.NDArray[np.int32]:
    """The ids [R] that the policy sampled. Raises ChoiceIncomplete, TokenUnknown."""
    ids = field(choice, "token_ids")
    if ids is None:
        entries = _entries(choice)
        pieces = [field(entry, "token") for entry in entries]
        numbers = [_TOKEN_ID.fullmatch(piece) if isinstance(piece, str) else None for piece in pieces]
        if all(numbers):
            ids = [int(number[1]) for number in numbers if number]
        else:
            ids = _vocabulary_ids(pieces, tokenizer)
            _check_text(choice, ids, tokenizer)
    array = token_array(ids)
    if not len(array):
        raise ChoiceIncomplete("The choice has zero tokens.")
    beyond = array[(array < 0) | (array >= tokenizer.vocab_size)]
    if len(beyond):
        raise TokenUnknown(
            f"Id {beyond[0]} is not in the vocabulary of {tokenizer.name}, which ends at {tokenizer.vocab_size - 1}. "
            "The server runs another tokenizer."
        )
    return array


def logprobs_of(choice: Any) -> npt.NDArray[np.float32]:
    """The natural log-probabilities [R] of the sampled tokens. Raises ChoiceIncomplete, ChoiceRefused."""
    values = [field(entry, "logprob") for entry in _entries(choice)]
    try:
        array = np.array(values, dtype=np.float32)
    except (TypeError, ValueError):
        raise ChoiceRefused("A log-probability of the choice is not a number.") from None
    if not np.isfinite(array).all():
        raise ChoiceRefused(f"The log-probability at position {int(np.argmin(np.isfinite(array)))} is not finite.")
    return array


def token_array(ids: Sequence[Any]) -> npt.NDArray[np.int32]:
    """Ids as int32. Raises ChoiceRefused where one is no integer of 31 bits."""
    if not all(isinstance(i, int | np.integer) and not isinstance(i, bool) and 0 <= i < _INT32_END for i in ids):
        raise ChoiceRefused("A token id is not an integer from 0 to 2147483647.")
    return np.array(ids, dtype=np.int32)


def _entries(choice: Any) -> Sequence[Any]:
    content = field(field(choice, "logprobs"), "content")
    if not content:
        raise ChoiceIncomplete("The choice has no logprobs.content. TurnRequest the server for `logprobs: true`.")
    return list(content)


def _vocabulary_ids(pieces: Sequence[Any], tokenizer: ChatTokenizer) -> list[int]:
    found = [tokenizer.token_id(piece) if isinstance(piece, str) else None for piece in pieces]
    ids = [i for i in found if i is not None]
    if len(ids) < len(found):
        raise TokenUnknown(
            f"{len(found) - len(ids)} of {len(found)} tokens, the first at position {found.index(None)}, are no pieces "
            f"of the vocabulary of {tokenizer.name}: the server sends decoded text. TurnRequest it for ids (vLLM: "
            "`return_token_ids` or `return_tokens_as_token_ids`)."
        )
    return ids


def _check_text(choice: Any, ids: Sequence[int], tokenizer: ChatTokenizer) -> None:
    # A decoded reply may consist of pieces by accident: `é` is a piece of byte-level vocabularies, but another token.
    text = field(field(choice, "message"), "content")
    if isinstance(text, str) and text.strip() not in tokenizer.decode(ids):
        raise TokenUnknown(
            f"The tokens are pieces of the vocabulary of {tokenizer.name}, but do not spell the message. The server "
            "sends decoded text, or runs another tokenizer. TurnRequest it for ids."
        )
