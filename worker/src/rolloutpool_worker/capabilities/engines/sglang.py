"""How SGLang is asked: `/generate` with `input_ids`.

It serves one model, and so is told no name. Recent versions report the spans of weight versions. Older ones report the
last version alone; then it is only known that no id is of a later one, and the version is written `<=NAME`.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rolloutpool_common.capabilities.engines.wire import AttachmentKind
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_worker.capabilities.engines.api import EngineCall, sampling_fields, with_ids
from rolloutpool_worker.capabilities.engines.attachments import (
    CallAttachment,
    mask_attachment,
    raw_rows,
    routed_attachment,
    unpacked,
)
from rolloutpool_worker.capabilities.engines.reply import Finish, ReplyReader, SampledCall, VersionSpan

GENERATE = "/generate"
_START = "routed_experts_start_len"
_CONTEXT = re.compile(r"context length (?:of |\()(\d{1,9})")
_TAKEN = re.compile(r"maximum allowed length \((\d{1,9})")
"""How long a prompt must not be; less than the context says where the memory for caches is smaller."""
_LEFT, _UNUSED = 6, 2
"""It takes no prompt that leaves so few places of the context, and never fills the last ones (0.5.23)."""
_ENTRY = 2
"""Values of an entry that must be there. Of `[log-probability, id, text]`, the text may be missing."""


class SglangApi:
    """SGLang's own endpoint."""

    paths: Sequence[str] = (GENERATE,)
    version_path = "/model_info"

    def __init__(self, spec: RolloutSpec, stop_ids: Sequence[int]) -> None:
        """Prepares what is equal in all calls of a rollout."""
        self._sampling = {**sampling_fields(spec, stop_ids), "skip_special_tokens": False}
        self._attach = frozenset(spec.attach)
        self._row_bytes: int | None = None
        """How long a row of routed experts is; None until a first reply has shown it."""

    def body(self, path: str, call: EngineCall) -> bytes:
        """See `EngineApi`."""
        del path
        fields: dict[str, Any] = {
            "rid": call.name,
            "sampling_params": {**self._sampling, "max_new_tokens": call.max_tokens},
            "return_logprob": True,
            "logprob_start_len": -1,
            "return_prompt_token_ids": True,
            "session_id": call.session,
            "cache_salt": call.salt,
            "stream": False,
        }
        if AttachmentKind.ROUTED_EXPERTS in self._attach:
            fields |= {"return_routed_experts": True, "routed_experts_start_len": self._asked_from(call)}
        if AttachmentKind.SAMPLING_MASK in self._attach:
            fields["return_sampling_mask"] = True
        return with_ids("input_ids", call.prompt, fields)

    def room(self, context: int, prompt: int) -> int:
        """See `EngineApi`."""
        return context - _UNUSED - prompt if context - prompt > _LEFT else 0

    def told_context(self, refusal: str) -> int | None:
        """See `EngineApi`."""
        if (found := _CONTEXT.search(refusal)) is not None:
            return int(found[1])
        return None if (found := _TAKEN.search(refusal)) is None else int(found[1]) + _LEFT

    def names(self, reader: ReplyReader) -> Sequence[Any]:
        """See `EngineApi`."""
        return (reader.object(reader.document.get("meta_info"), "meta_info").get("id"),)

    def read(self, path: str, reader: ReplyReader) -> SampledCall:
        """See `EngineApi`."""
        del path
        document = reader.document
        meta = reader.object(document.get("meta_info"), "meta_info")
        finish = reader.object(meta.get("finish_reason"), "meta_info.finish_reason").get("type")
        if finish == Finish.ABORT and not document.get("output_ids"):
            # It may have been aborted before anything was done.
            return reader.sampled([], [], finish, ())
        reader.check_prompt(document.get("prompt_token_ids"))
        ids, entries = document.get("output_ids"), meta.get("output_token_logprobs") or []
        if not isinstance(entries, list) or not all(isinstance(e, list) and len(e) >= _ENTRY for e in entries):
            raise reader.refusal("output_token_logprobs is not a list of [log-probability, id, text]")
        if [entry[1] for entry in entries] != ids:
            raise reader.refusal("output_token_logprobs are not of the output_ids")
        spans, last = reader.spans(meta.get("weight_versions")), meta.get("weight_version")
        if spans is None and ids and last is not None:
            spans = (VersionSpan(f"<={last}", 0, len(ids)),)
        return reader.sampled(ids, [entry[0] for entry in entries], finish, spans)

    def attachments(self, reader: ReplyReader, call: EngineCall, ids: Sequence[int]) -> Iterator[CallAttachment]:
        """See `EngineApi`."""
        meta = reader.object(reader.document.get("meta_info"), "meta_info")
        if AttachmentKind.ROUTED_EXPERTS in self._attach:
            sent, end, said = meta.get("routed_experts"), call.length + len(ids) - 1, meta.get(_START)
            begin = said if type(said) is int else self._asked_from(call)
            rows = raw_rows(unpacked(sent), self._row_bytes, end - begin)
            found = routed_attachment(sent, rows, start=call.routed_from, sent_from=begin, end=end)
            if rows is not None and found.lacks is None:
                self._row_bytes = rows.row_bytes
            yield found
        if AttachmentKind.SAMPLING_MASK in self._attach:
            masks, logprobs = (meta.get(f"output_token_sampling_{name}") for name in ("mask", "logprobs"))
            yield mask_attachment(masks, ids, first=call.length, logprobs=logprobs)

    def _asked_from(self, call: EngineCall) -> int:
        # From the start, as long as only the number of rows tells how long one is.
        return 0 if self._row_bytes is None else call.routed_from
