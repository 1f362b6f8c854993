"""Says what differs between engines: which paths they have, how a call is written, and how its reply is read.

`EngineChannel` does everything else. An api is one per rollout. It keeps the rollout's sampling parameters, and what
it has learned of the form in which its engine sends attachments.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from rolloutpool_common.errors import RequestFault
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_worker.capabilities.engines.attachments import CallAttachment
from rolloutpool_worker.capabilities.engines.reply import ReplyReader, SampledCall

_OURS = frozenset(
    {
        *("best_of", "detokenize", "echo", "max_new_tokens", "n", "prompt_logprobs", "routed_experts_prompt_start"),
        *("stream", "use_beam_search"),
    }
)
"""Sampling parameters that would change what a reply holds; the channel sets them, or they must not be set."""


@dataclass(frozen=True)
class EngineCall:
    """One call of an engine."""

    name: str
    """Names the request to the engine; no two calls have the same name."""
    session: str
    """Related calls have the same one, so that routers lead them to one replica."""
    prompt: bytes
    """The ids as numbers and commas."""
    max_tokens: int
    salt: str
    """Calls with different salts share no prefix cache."""
    length: int = 0
    """Of the prompt."""
    routed_from: int = 0
    """Offset in the prompt of the first id whose experts no call before has told."""


class EngineApi(Protocol):
    """How one kind of engine is asked."""

    paths: Sequence[str]
    """Where turns are sampled, the best first; a later one is for engines that lack those before it."""
    version_path: str
    """Where the engine says which weights it has: `weight_version`."""

    def room(self, context: int, prompt: int) -> int:
        """How many ids it samples behind a prompt at the most; 0 or less where it takes no such prompt."""
        ...

    def told_context(self, refusal: str) -> int | None:
        """Reads the context length from the words of a refusal; None where they name none."""
        ...

    def body(self, path: str, call: EngineCall) -> bytes:
        """Writes the request for a call."""
        ...

    def names(self, reader: ReplyReader) -> Sequence[Any]:
        """Returns what a reply has where the engine gives the name of the request back; see `foreign_reply`."""
        ...

    def read(self, path: str, reader: ReplyReader) -> SampledCall:
        """Reads a reply."""
        ...

    def attachments(self, reader: ReplyReader, call: EngineCall, ids: Sequence[int]) -> Iterator[CallAttachment]:
        """Reads what the batch wants to be kept beside the ids, one of each kind; see `engine_attachments`."""
        ...


def sampling_fields(spec: RolloutSpec, stop_ids: Sequence[int]) -> dict[str, Any]:
    """Returns the sampling parameters that both engines write alike, and those that only the batch knows."""
    sampling = spec.sampling_params
    extra = sampling.extra()
    if taken := sorted(_OURS & extra.keys()):
        raise RequestFault(f"sampling_params: {', '.join(taken)} cannot be set for an engine; remove it")
    own_stops = extra.get("stop_token_ids") or []
    if not isinstance(own_stops, list) or not all(type(stop) is int for stop in own_stops):
        raise RequestFault("sampling_params: stop_token_ids must be a list of integers")
    return {
        **extra,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "stop_token_ids": sorted({*stop_ids, *own_stops}),
        **({"stop": sampling.stop} if sampling.stop else {}),
    }


def with_ids(name: str, ids: bytes, rest: Mapping[str, Any]) -> bytes:
    """Writes a JSON object whose first field is a list of ids that is text already."""
    return b"".join((b'{"', name.encode(), b'":[', ids, b"],", orjson.dumps(rest)[1:]))
