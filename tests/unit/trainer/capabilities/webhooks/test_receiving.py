"""A receiver's check of a push, with headers as frameworks hand them over."""

import time

import pytest
from tests.support.api_documents import result

from rolloutpool_common.capabilities.webhooks.push import PushEvent, SignatureInvalid, sign
from rolloutpool_trainer.capabilities.webhooks.receiving import verify_push

SECRET = "whsec_c2VjcmV0IGtleSBmb3IgdGVzdHM="


def pushed() -> tuple[dict[str, str], bytes]:
    body = PushEvent.model_validate({"timestamp": "2026-01-01T00:00:00Z", "data": result(0)}).model_dump_json().encode()
    now = int(time.time())
    headers = {
        "Webhook-Id": "m1",
        "Webhook-Timestamp": str(now),
        "Webhook-Signature": sign(SECRET, "m1", now, body),
    }
    return headers, body


def test_a_signed_push_is_read() -> None:
    headers, body = pushed()
    assert verify_push(SECRET, headers, body).data.rollout_id == "r0"


@pytest.mark.parametrize("header", ["Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"])
def test_each_header_is_needed(header: str) -> None:
    headers, body = pushed()
    del headers[header]
    with pytest.raises(SignatureInvalid):
        verify_push(SECRET, headers, body)


def test_a_changed_body_is_refused() -> None:
    headers, body = pushed()
    with pytest.raises(SignatureInvalid):
        verify_push(SECRET, headers, body.replace(b"r0", b"r1"))
