"""A result is written in slices, and reads as pydantic would have written it."""

from typing import Any

import orjson
import pytest

from rolloutpool_common.capabilities.engines.wire import AttachmentKind, AttachmentsReport
from rolloutpool_common.capabilities.harness.wire import HarnessReport
from rolloutpool_common.capabilities.runs.wire import StaleVersions
from rolloutpool_common.protocol.result import RolloutResult, encode_result
from rolloutpool_common.tokens.arrays import AT_ONCE
from rolloutpool_common.tokens.ledger import TokenLedger

TRICKY = '{"samples":[]} "samples":[] \\ \u2028 \U0001f600 </s>'


def ledger(turns: int, glue: int, *, forks: bool = False) -> TokenLedger:
    """Of so many turns, with so many ids after each."""
    found = TokenLedger()
    found.seed([1, 2, 3])
    for turn in range(1, turns + 1):
        found.append_sampled([turn, 4095, 2**32 - 1], [-0.1 * turn, -1e-7, 0.0], turn=turn, policy_version=TRICKY)
        found.append_glue([7] * glue, turn=turn)
        if forks:
            found.accept_echo([1, 2, 9, *[8] * turn])
    return found


def result(**changes: Any) -> RolloutResult:
    fields: dict[str, Any] = {"uid": "u", "rollout_id": "r", "batch_id": "b", "index": 0}
    return RolloutResult.model_validate({**fields, "status": "completed", "finish_reason": "stop", **changes})


@pytest.mark.parametrize(
    "samples",
    [
        [],
        TokenLedger().samples(),
        ledger(1, 0).samples(),
        ledger(3, 5).samples(),
        ledger(5, 4, forks=True).samples(),
        ledger(3, AT_ONCE - 2).samples(),
        ledger(2, 3 * AT_ONCE + 1).samples(),
    ],
)
def test_it_reads_as_pydantics_json(samples: list[Any]) -> None:
    messages = [{"role": "tool", "content": TRICKY, "samples": [], "tool_call_id": "c"}]
    metadata = {"samples": [], TRICKY: [None, 1.5]}
    # They are left out where a batch asked for none and where it is not stale, as in the last line.
    versions = StaleVersions(sampled=10, run=13, allowed=11)
    report = AttachmentsReport(bytes=1, missing={AttachmentKind.SAMPLING_MASK: 1})
    found = result(
        samples=samples,
        messages=messages,
        metadata=metadata,
        attachments=report,
        stale_versions=versions,
        harness=HarnessReport(calls=1, lines=[]),
    )
    written = encode_result(found)
    assert orjson.loads(written) == orjson.loads(found.model_dump_json())
    assert RolloutResult.model_validate_json(written) == found
    assert list(orjson.loads(written)) == list(RolloutResult.model_fields)
    assert encode_result(result()) == result().model_dump_json().encode()
    assert not {"attachments", "stale_versions"} & orjson.loads(encode_result(result())).keys()
