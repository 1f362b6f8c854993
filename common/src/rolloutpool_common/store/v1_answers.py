"""V1Cut: where protocol v1's answer stands in a stored result, so that the API passes bytes on and parses nothing.

1. A worker that ends a rollout of protocol v1 `completed` writes the result as JSON, and looks for the parts of v1's
   answer in it: name, transcript, counts and times.
2. The places of the parts follow the compressed result as a frame that zstd skips: 47 bytes, which no other reader
   sees.
3. The API cuts the parts out of the result and joins them with v1's own words.

A result without the frame is read and answered by `protocol.v1.response.to_v1`, which defines the answer: that of a
rollout that failed, was ended from outside or was traced, a short one that is not compressed, one of an older worker.
"""

import struct
from typing import NamedTuple, Self

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.v1.response import FINISH

_MAGIC = b"\x50\x2a\x4d\x18"
"""Begins a frame that zstd skips, followed by the length of its content."""
_PLACES = struct.Struct("<II" + "IB" * 6 + "B")
_HEAD = _MAGIC + _PLACES.size.to_bytes(4, "little")
_REASONS = ("stop", "max_turns", "max_tokens")
_MESSAGES = b',"messages":['
_SAMPLES = b'],"samples":[{"prompt_ids":['
"""The record for replays, at the end, has other `samples`."""
_ANSWER = (
    b'{"rollout_id":%b,"status":"COMPLETED","final_messages":[%b],"finish_reason":"%b","error_message":null,'
    b'"metrics":{"total_latency_ms":%b,"llm_latency_ms":%b,"tool_latency_ms":%b,"num_llm_calls":%b,'
    b'"max_context_tokens":%b},"extra_fields":{}}'
)


class _Place(NamedTuple):
    """A part of the result."""

    start: int
    length: int

    def cut(self, document: bytes) -> bytes:
        """Returns its bytes."""
        return document[self.start : self.start + self.length]


class V1Cut(NamedTuple):
    """The places of an answer's parts in a result."""

    places: tuple[_Place, ...]
    """Name, transcript without its last bracket, total time, the model's, the tools', the four counts that v1 has under
    the same names in the same order, and the last of these."""
    reason: str

    @classmethod
    def of(cls, result: RolloutResult, document: bytes) -> Self | None:
        """Finds the answer of a result in its JSON; None where the answer is no cut of it.

        In a text each quotation mark is escaped, so only an object of a caller's or a policy's own can have what looks
        like one of our keys. There are some in front of the samples (metadata, arguments of calls): there a key counts
        only if there is one. Behind the samples the first is ours, because such objects come last.
        """
        reason = FINISH.get(result.finish_reason)
        if result.status is not RolloutStatus.COMPLETED or reason is None or result.trace is not None:
            return None
        try:
            name = _between(document, b',"rollout_id":', b',"batch_id":', 0)
            messages = _between(document, _MESSAGES, _SAMPLES, name.start)
            samples = messages.start + messages.length
            if document.find(_MESSAGES, messages.start, samples) >= 0 or document.find(_SAMPLES, samples + 1) >= 0:
                return None
            behind = document.index(b'],"alignment":', samples)
            counts = _between(document, b',"num_llm_calls":', b',"max_context_tokens":', behind)
            sampled = _between(document, b',"response_tokens":', b",", counts.start)
            spans = document.index(b',"spans":{', counts.start)
            total_ms = _between(document, b',"total_ms":', b"}", spans)
            llm_ms, tools_ms = (_between(document, key, b",", spans) for key in (b',"llm_ms":', b',"tools_ms":'))
        except ValueError:
            return None
        if reason == "max_tokens":
            # v1 leaves out the turn that reached the limit.
            last = len(result.messages[-1].model_dump_json().encode())
            messages = messages._replace(length=max(messages.length - last - 1, 0))
        return cls((messages, name, total_ms, llm_ms, tools_ms, counts, sampled), reason)

    def frame(self) -> bytes:
        """Writes the places as a frame that zstd skips; empty where one of them is too large for it."""
        try:
            return _HEAD + _PLACES.pack(*(n for place in self.places for n in place), _REASONS.index(self.reason))
        except struct.error:
            return b""

    @classmethod
    def parse(cls, frame: bytes) -> Self | None:
        """Reads such a frame; None where it is something else."""
        if not frame.startswith(_HEAD) or len(frame) != len(_HEAD) + _PLACES.size:
            return None
        *numbers, reason = _PLACES.unpack_from(frame, len(_HEAD))
        return cls(tuple(map(_Place, numbers[::2], numbers[1::2])), _REASONS[reason])

    def answer(self, document: bytes) -> bytes:
        """Cuts the answer out of the result's JSON."""
        messages, name, total_ms, llm_ms, tools_ms, counts, sampled = (place.cut(document) for place in self.places)
        return _ANSWER % (name, messages, self.reason.encode(), total_ms, llm_ms, tools_ms, counts, sampled)


def _between(document: bytes, key: bytes, end: bytes, start: int) -> _Place:
    """Finds what stands between a key and what follows its value; raises ValueError where they are not there."""
    begin = document.index(key, start) + len(key)
    return _Place(begin, document.index(end, begin) - begin)


class V1End(NamedTuple):
    """How a rollout of protocol v1 ended."""

    answer: bytes | None
    """v1's answer; None where the API has to make it out of the result."""
    result: bytes
    """As JSON."""
