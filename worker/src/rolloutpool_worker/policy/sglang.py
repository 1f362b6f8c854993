"""How SGLang is asked: `/generate` with `input_ids`.

It serves one model, and so is told no name. Recent versions report the spans of weight versions. Older ones report the
last version alone; then it is only known that no id is of a later one, and the version is written `<=NAME`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_worker.policy.engine_api import EngineCall, sampling_fields, with_ids
from rolloutpool_worker.policy.engine_reply import Finish, ReplyReader, SampledCall, VersionSpan

__all__ = ["SglangApi"]

GENERATE = "/generate"
_ENTRY = 2
"""Values of an entry that must be there. Of `[log-probability, id, text]`, the text may be missing."""


class SglangApi:
    """SGLang's own endpoint."""

    paths: Sequence[str] = (GENERATE,)
    version_path = "/model_info"
    # It refuses what would fill the context to its last place.
    unused = 1

    def __init__(self, spec: RolloutSpec, stop_ids: Sequence[int]) -> None:
        """Prepares what is equal in all calls of a rollout.

        Args:
            spec: The rollout.
            stop_ids: Ids at which the policy's turn ends.

        Raises:
            RequestFault: A sampling parameter is given that the channel has to set.
        """
        self._sampling = {**sampling_fields(spec, stop_ids), "skip_special_tokens": False}

    def body(self, path: str, call: EngineCall) -> bytes:
        """See `EngineApi`."""
        del path
        fields = {
            "rid": call.name,
            "sampling_params": {**self._sampling, "max_new_tokens": call.max_tokens},
            "return_logprob": True,
            "logprob_start_len": -1,
            "return_prompt_token_ids": True,
            "session_id": call.session,
            "cache_salt": call.salt,
            "stream": False,
        }
        return with_ids("input_ids", call.prompt, fields)

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

    def version(self, document: Mapping[str, Any]) -> str | None:
        """See `EngineApi`."""
        found = document.get("weight_version")
        return str(found) if isinstance(found, str | int) else None
