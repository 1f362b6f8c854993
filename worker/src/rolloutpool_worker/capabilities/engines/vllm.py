"""How vLLM is asked: `/inference/v1/generate`, and `/v1/completions` where the server was not started for the first.

The first needs a server flag (`--enable-scale-out`), without which it answers 403; older versions answer 404. The
second is always there. It samples 16 tokens where `max_tokens` is missing, so that is always sent.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rolloutpool_common.capabilities.engines.wire import AttachmentKind
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_worker.capabilities.engines.api import EngineCall, sampling_fields, with_ids
from rolloutpool_worker.capabilities.engines.attachments import (
    CallAttachment,
    mask_attachment,
    npy_rows,
    routed_attachment,
    unpacked,
)
from rolloutpool_worker.capabilities.engines.reply import Finish, ReplyReader, SampledCall

GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"
_CONTEXT = re.compile(r"maximum (?:context|model) length (?:is|of) (\d{1,9})")


class VllmApi:
    """vLLM's token-in endpoints."""

    paths: Sequence[str] = (GENERATE, COMPLETIONS)
    version_path = "/weight_info"

    def __init__(self, spec: RolloutSpec, stop_ids: Sequence[int]) -> None:
        """Prepares what is equal in all calls of a rollout."""
        self._model = {} if spec.model is None else {"model": spec.model}
        self._sampling = sampling_fields(spec, stop_ids)
        # Text is needed for stop strings alone.
        self._detokenize = "stop" in self._sampling
        self._attach = frozenset(spec.attach)

    def body(self, path: str, call: EngineCall) -> bytes:
        """See `EngineApi`."""
        common = {**self._model, "request_id": call.name, "stream": False, "cache_salt": call.salt}
        # Whether it sends them at all is decided where it is started.
        routed = AttachmentKind.ROUTED_EXPERTS in self._attach
        start = {"routed_experts_prompt_start": call.routed_from} if routed else {}
        if path == GENERATE:
            sampling = {**self._sampling, "max_tokens": call.max_tokens, "logprobs": 1, "detokenize": self._detokenize}
            sampling |= start
            return with_ids("token_ids", call.prompt, {**common, "return_token_ids": True, "sampling_params": sampling})
        return with_ids(
            "prompt",
            call.prompt,
            {
                **self._sampling,
                **common,
                **start,
                "max_tokens": call.max_tokens,
                "logprobs": 0,
                "session_id": call.session,
                "return_token_ids": True,
                "return_weight_versions": True,
            },
        )

    def room(self, context: int, prompt: int) -> int:
        """See `EngineApi`."""
        return context - prompt

    def told_context(self, refusal: str) -> int | None:
        """See `EngineApi`."""
        found = _CONTEXT.search(refusal)
        return None if found is None else int(found[1])

    def names(self, reader: ReplyReader) -> Sequence[Any]:
        """See `EngineApi`."""
        return reader.document.get("id"), reader.document.get("request_id")

    def read(self, path: str, reader: ReplyReader) -> SampledCall:
        """See `EngineApi`."""
        choice = reader.only_choice()
        ids, finish = choice.get("token_ids"), choice.get("finish_reason")
        if finish == Finish.ABORT and not ids:
            # It may have been aborted before anything was done.
            return reader.sampled([], [], finish, ())
        holder = reader.document if path == GENERATE else choice
        reader.check_prompt(holder.get("prompt_token_ids"))
        logprobs = reader.object(choice.get("logprobs"), "logprobs")
        values = _of_tokens(reader, ids, logprobs) if path == GENERATE else logprobs.get("token_logprobs", [])
        if not isinstance(values, list):
            raise reader.refusal("token_logprobs is not a list")
        return reader.sampled(ids, values, finish, reader.spans(choice.get("weight_versions")))

    def attachments(self, reader: ReplyReader, call: EngineCall, ids: Sequence[int]) -> Iterator[CallAttachment]:
        """See `EngineApi`."""
        choice = reader.only_choice()
        if AttachmentKind.ROUTED_EXPERTS in self._attach:
            sent = choice.get("routed_experts")
            rows, start, end = npy_rows(unpacked(sent) or b""), call.routed_from, call.length + len(ids) - 1
            yield routed_attachment(sent, rows, start=start, sent_from=start, end=end)
        if AttachmentKind.SAMPLING_MASK in self._attach:
            # `/v1/completions` has none.
            yield mask_attachment(choice.get("sampling_mask"), ids, first=call.length)


def _of_tokens(reader: ReplyReader, ids: Any, logprobs: Mapping[str, Any]) -> list[Any]:
    """The log-probabilities of `/inference/v1/generate`, each of which names its id."""
    content = logprobs.get("content", [])
    if not isinstance(content, list):
        raise reader.refusal("logprobs.content is not a list")
    entries = [reader.object(entry, "logprobs.content") for entry in content]
    named = [_id_of(entry) for entry in entries]
    if named != ids:
        raise reader.refusal("the log-probabilities are not of the sampled ids")
    return [entry.get("logprob") for entry in entries]


def _id_of(entry: Mapping[str, Any]) -> int | None:
    found = entry.get("token_id")
    if found is None:
        # Before 0.33 the id was in the token's text.
        _, _, number = str(entry.get("token")).partition("token_id:")
        return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else None
    return found if type(found) is int else None
