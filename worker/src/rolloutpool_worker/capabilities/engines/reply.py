"""Says what an engine has sampled: read from its reply, and refused where it proves less than it should.

A reply is used only as a whole. It is refused (`TrainerProtocolError`) where

- the prompt that it reports is not the one that was sent: SGLang cuts a long prompt without a word if it was started
  to do so, and then the ids were sampled after something else than the ledger has;
- ids and log-probabilities differ in number, or belong to other ids;
- a log-probability is no finite number, or -9999: engines write that where they have none;
- the spans of weight versions do not tile the ids.

A prompt of 100,000 ids comes back with each reply. Its text is compared with the text that was sent, and taken out
before the reply is parsed; only where that fails are its ids read.

    sent      "token_ids":[1,2,3]                    the text: 1,2,3
    reply     "prompt_token_ids":[1,2,3],"choices"…  parsed: "prompt_token_ids":["the word"],"choices"…
"""

import math
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from rolloutpool_common.capabilities.engines.attachments import piece_digest
from rolloutpool_common.capabilities.engines.kept import PackedPiece
from rolloutpool_common.errors import TrainerProtocolError
from rolloutpool_worker.capabilities.engines.attachments import CallAttachment
from rolloutpool_worker.policy.foreign_reply import ForeignReply
from rolloutpool_worker.policy.reply import SampledPart

MISSING_LOGPROB = -9999.0
"""What vLLM writes for minus infinity, and where it has no log-probability."""
HIGHEST_LOGPROB = 1e-3
"""A log-probability is at most 0. Rounding in half precision gives a little more."""
_KEY = b'"prompt_token_ids":['
_WORD = secrets.token_hex(16)
_CALL_NAME = re.compile(r"/\d+\.\d+\.\d+(?=$|\D)")
"""What the names of all calls have, and hardly another id: turn, attempt and number behind the rollout."""


class Finish(StrEnum):
    """Why an engine stopped."""

    STOP = "stop"
    """At an id or text that ends a turn."""
    LENGTH = "length"
    """At `max_tokens`, or at the end of the context."""
    REPETITION = "repetition"
    """vLLM's detection of repetitions."""
    ABORT = "abort"
    """The engine was told to, for a weight update for instance. The policy's turn has not ended."""


@dataclass(frozen=True)
class VersionSpan:
    """Ids that one version of the weights has sampled."""

    version: str | None
    start: int
    end: int
    """Behind its last id."""


@dataclass(frozen=True)
class SampledCall:
    """One reply of an engine."""

    ids: list[int]
    logprobs: list[float]
    """[len(ids)]."""
    finish: Finish
    spans: tuple[VersionSpan, ...]
    """Tile the ids."""
    attachments: tuple[CallAttachment, ...] = ()
    """What the batch wants to be kept beside the ids; empty where there are none."""

    def pieces(self, turn: int, first: int) -> Iterator[PackedPiece]:
        """Names the ids to which the attachments belong; `first` is the offset of the first of them."""
        digest = piece_digest(self.ids) if self.attachments else ""
        for one in self.attachments:
            yield PackedPiece(
                kind=one.kind,
                turn=turn,
                first=first,
                n=len(self.ids),
                digest=digest,
                start=one.start,
                rows=one.rows,
                lacks=one.lacks,
                arrays=one.arrays,
            )


@dataclass(frozen=True)
class EngineTurn:
    """One whole turn, in one call or several."""

    parts: tuple[SampledPart, ...]
    finish: Finish
    """Never ABORT."""
    aborts: int = 0
    """How often the engine has stopped in the middle."""
    call_ids: tuple[str, ...] = ()
    """Of a turn that was parsed before: the ids that its calls got then. A parser makes them up."""
    attachments: tuple[PackedPiece, ...] = ()
    """What is kept beside the ids, call by call."""

    @property
    def ids(self) -> list[int]:
        """All ids of the turn."""
        return [token for part in self.parts for token in part.ids]

    @property
    def logprobs(self) -> list[float]:
        """Of these ids."""
        return [logprob for part in self.parts for logprob in part.logprobs]

    @property
    def version(self) -> str | None:
        """Of the last ids; None where there are none, or the engine does not say."""
        return self.parts[-1].version if self.parts else None


class ReplyReader:
    """Reads the reply to one call."""

    def __init__(self, data: bytes, prompt: bytes, where: str) -> None:
        """Parses the body."""
        self._prompt = prompt
        self._where = where
        start = data.find(_KEY) + len(_KEY)
        end = start + len(prompt)
        if start >= len(_KEY) and data[end : end + 1] == b"]" and data.startswith(prompt, start):
            data = b"".join((data[:start], orjson.dumps(_WORD), data[end:]))
        try:
            document = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise self.refusal(f"the reply is not JSON ({error.msg})") from None
        self.document: dict[str, Any] = self.object(document, "the reply")

    def refusal(self, why: str) -> TrainerProtocolError:
        """Makes the error for a reply that cannot be used.

        It may be made of two: a proxy that repeats answers puts half of one before the rest of another, and that can be
        JSON. An engine may always be asked once more.
        """
        return TrainerProtocolError(f"{self._where}: {why}", retryable=True)

    def object(self, value: Any, what: str) -> dict[str, Any]:
        """Returns a value that must be an object; raises `TrainerProtocolError`."""
        if not isinstance(value, dict):
            raise self.refusal(f"{what} is not an object")
        return value

    def only_choice(self) -> dict[str, Any]:
        """Returns the one choice of vLLM's replies; raises `TrainerProtocolError`."""
        choices = self.document.get("choices")
        if not isinstance(choices, list) or len(choices) != 1:
            raise self.refusal("the reply must have one choice")
        return self.object(choices[0], "choices.0")

    def check_prompt(self, reported: Any) -> None:
        """Compares the prompt that the engine reports with the one that was sent."""
        if reported == [_WORD]:
            return
        if not isinstance(reported, list):
            raise self.refusal("the reply lacks prompt_token_ids, so that it is not known what was sampled from")
        sent = orjson.loads(b"[%b]" % self._prompt)
        if reported != sent:
            place = next((i for i, (a, b) in enumerate(zip(sent, reported, strict=False)) if a != b), None)
            at = f"they differ at {min(len(sent), len(reported)) if place is None else place}"
            raise self.refusal(f"the engine sampled from {len(reported)} prompt ids, sent were {len(sent)}; {at}")

    def sampled(
        self, ids: Any, logprobs: Sequence[Any], finish: Any, spans: tuple[VersionSpan, ...] | None
    ) -> SampledCall:
        """Checks what was sampled."""
        if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
            raise self.refusal("token_ids is not a list of integers")
        if ids and min(ids) < 0:
            raise self.refusal(f"token_ids has a negative id: {min(ids)}")
        if len(logprobs) != len(ids):
            raise self.refusal(f"{len(ids)} sampled ids, but {len(logprobs)} log-probabilities; they must pair up")
        if not isinstance(finish, str) or finish not in set(Finish):
            raise self.refusal(f"unknown finish_reason {str(finish)[:50]!r}")
        floats = [self._logprob(value, place) for place, value in enumerate(logprobs)]
        if spans is None:
            spans = (VersionSpan(None, 0, len(ids)),) if ids else ()
        self._check_tiles(spans, len(ids))
        return SampledCall(ids, floats, Finish(finish), spans)

    def spans(self, listed: Any) -> tuple[VersionSpan, ...] | None:
        """Reads `weight_versions`; None where the engine sends none."""
        if listed is None:
            return None
        if not isinstance(listed, list):
            raise self.refusal("weight_versions is not a list")
        return tuple(self._span(self.object(span, "weight_versions")) for span in listed)

    def _span(self, span: dict[str, Any]) -> VersionSpan:
        version, start, end = span.get("version"), span.get("start"), span.get("end")
        if not isinstance(version, str | int | None) or type(start) is not int or type(end) is not int:
            raise self.refusal("a span of weight_versions lacks version, start or end")
        return VersionSpan(None if version is None else str(version), start, end)

    def _check_tiles(self, spans: tuple[VersionSpan, ...], n: int) -> None:
        at = 0
        for span in spans:
            if span.start != at or span.end <= at:
                raise self.refusal(f"weight_versions do not tile the {n} sampled ids: a span begins at {span.start}")
            at = span.end
        if at != n:
            raise self.refusal(f"weight_versions end at {at} of {n} sampled ids")

    def _logprob(self, value: Any, place: int) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # -9999 is missing evidence, whatever else it may stand for: no token that low was ever sampled.
        if not number or not math.isfinite(value) or not MISSING_LOGPROB < value <= HIGHEST_LOGPROB:
            raise self.refusal(f"the engine has no log-probability for the sampled id at {place} ({str(value)[:30]})")
        return float(value)


def check_call(reported: Iterable[Any], name: str) -> None:
    """Compares the ids that a reply has with the name of its call; raises `ForeignReply`.

    Some versions of vLLM make up an id, and a gateway may name the request by `X-Request-Id`, so an id counts only if
    it has the form of our names.
    """
    for found in reported:
        if not isinstance(found, str) or _CALL_NAME.search(found) is None:
            continue
        before, _, after = found.rpartition(name)
        if name not in found or (before and before[-1].isalnum()) or after[:1].isdigit():
            raise ForeignReply()
