"""Reads from a chat completion's choice which tokens were sampled, and how likely they were.

The ids are taken from the first of these that is there:

1. `token_ids`;
2. entries of `logprobs.content` that read `token_id:<n>`;
3. entries that are pieces of the vocabulary (`Ġhello`).

Text is never tokenised: decoded text does not give back the ids that were sampled, and on some vocabularies looking it
up gives wrong ids without an error. Choices are `openai` objects or plain dicts.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_rl.errors import ChoiceIncomplete, ChoiceRefused, TokenUnknown

_TOKEN_ID = re.compile(r"token_id:([0-9]+)")
_INT32_END = 2**31


def field(choice: Any, name: str) -> Any:
    """Returns a field of an object or of a mapping; None if there is none.

    Args:
        choice: An `openai` object, a dict, or None.
        name: Of the field.
    """
    return choice.get(name) if isinstance(choice, Mapping) else getattr(choice, name, None)


def sampled_ids(choice: Any, tokenizer: ChatTokenizer) -> npt.NDArray[np.int32]:
    """Reads the ids that the policy sampled.

    Args:
        choice: With `token_ids`, or with logprobs whose entries name ids or pieces.
        tokenizer: The server's.

    Returns:
        [R].

    Raises:
        ChoiceIncomplete: There are no tokens.
        TokenUnknown: The tokenizer has no such token, so the server runs another one or sends decoded text.
    """
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
    """Reads the natural log-probabilities of the sampled tokens.

    Returns:
        [R].

    Raises:
        ChoiceIncomplete: There are none.
        ChoiceRefused: One is no finite number.
    """
    values = [field(entry, "logprob") for entry in _entries(choice)]
    try:
        array = np.array(values, dtype=np.float32)
    except (TypeError, ValueError):
        raise ChoiceRefused("A log-probability of the choice is not a number.") from None
    if not np.isfinite(array).all():
        raise ChoiceRefused(f"The log-probability at position {int(np.argmin(np.isfinite(array)))} is not finite.")
    return array


def token_array(ids: Sequence[Any]) -> npt.NDArray[np.int32]:
    """Converts ids to int32.

    Raises:
        ChoiceRefused: One is no integer of 31 bits.
    """
    if not all(isinstance(i, int | np.integer) and not isinstance(i, bool) and 0 <= i < _INT32_END for i in ids):
        raise ChoiceRefused("A token id is not an integer from 0 to 2147483647.")
    return np.array(ids, dtype=np.int32)


def _entries(choice: Any) -> Sequence[Any]:
    content = field(field(choice, "logprobs"), "content")
    if not content:
        raise ChoiceIncomplete("The choice has no logprobs.content. Ask the server for `logprobs: true`.")
    return list(content)


def _vocabulary_ids(pieces: Sequence[Any], tokenizer: ChatTokenizer) -> list[int]:
    found = [tokenizer.token_id(piece) if isinstance(piece, str) else None for piece in pieces]
    ids = [i for i in found if i is not None]
    if len(ids) < len(found):
        raise TokenUnknown(
            f"{len(found) - len(ids)} of {len(found)} tokens, the first at position {found.index(None)}, are no pieces "
            f"of the vocabulary of {tokenizer.name}: the server sends decoded text. Ask it for ids (vLLM: "
            "`return_token_ids` or `return_tokens_as_token_ids`)."
        )
    return ids


def _check_text(choice: Any, ids: Sequence[int], tokenizer: ChatTokenizer) -> None:
    # Decoded text may consist of pieces by accident: in byte-level vocabularies `é` is a piece, but of other bytes.
    text = field(field(choice, "message"), "content")
    if isinstance(text, str) and text.strip() not in tokenizer.decode(ids):
        raise TokenUnknown(
            f"The tokens are pieces of the vocabulary of {tokenizer.name}, but do not spell the message. The server "
            "sends decoded text, or runs another tokenizer. Ask it for ids."
        )
