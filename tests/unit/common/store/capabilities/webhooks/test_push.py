"""Pushes are signed as Standard Webhooks say, and nothing else passes."""

import base64

import pytest

from rolloutpool_common.capabilities.webhooks.push import TOLERANCE_SECONDS, SignatureInvalid, sign, verify

NOW = 1_674_087_231
# The example of the Standard Webhooks specification.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
STAMP = 1_614_265_330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_specification_s_example() -> None:
    assert sign(SECRET, ID, STAMP, BODY) == SIGNATURE
    verify(SECRET, ID, str(STAMP), BODY, SIGNATURE, now=STAMP)


@pytest.mark.parametrize(
    "secret", ["plain text", "ключ", "whsec_not base64!", "whsec_" + base64.b64encode(b"k").decode()]
)
def test_any_secret_signs(secret: str) -> None:
    verify(secret, "id", str(NOW), BODY, sign(secret, "id", NOW, BODY), now=NOW)


def test_one_of_several_signatures_is_enough() -> None:
    verify(SECRET, ID, str(STAMP), BODY, f"v1,AAAA v2,x {SIGNATURE}", now=STAMP)


@pytest.mark.parametrize("skew", [-TOLERANCE_SECONDS, TOLERANCE_SECONDS])
def test_clocks_may_differ_a_little(skew: int) -> None:
    verify(SECRET, ID, str(STAMP), BODY, SIGNATURE, now=STAMP + skew)


@pytest.mark.parametrize(
    ("secret", "message_id", "stamp", "body", "signatures", "now"),
    [
        ("whsec_AAAA", ID, str(STAMP), BODY, SIGNATURE, STAMP),
        (SECRET, "msg_other", str(STAMP), BODY, SIGNATURE, STAMP),
        (SECRET, ID, str(STAMP + 1), BODY, SIGNATURE, STAMP),
        (SECRET, ID, str(STAMP), BODY + b" ", SIGNATURE, STAMP),
        (SECRET, ID, str(STAMP), BODY, "", STAMP),
        (SECRET, ID, str(STAMP), BODY, SIGNATURE[:-1], STAMP),
        (SECRET, ID, str(STAMP), BODY, SIGNATURE.removeprefix("v1,"), STAMP),
        (SECRET, ID, str(STAMP), BODY, "v1,é", STAMP),
        (SECRET, ID, str(STAMP), BODY, SIGNATURE, STAMP + TOLERANCE_SECONDS + 1),
        (SECRET, ID, "", BODY, SIGNATURE, STAMP),
        (SECRET, ID, "-5", BODY, SIGNATURE, STAMP),
        (SECRET, ID, "1e9", BODY, SIGNATURE, STAMP),
        (SECRET, ID, "²", BODY, SIGNATURE, STAMP),
        (SECRET, ID, "9" * 5000, BODY, SIGNATURE, STAMP),
    ],
)
def test_anything_else_is_refused(
    secret: str, message_id: str, stamp: str, body: bytes, signatures: str, now: float
) -> None:
    with pytest.raises(SignatureInvalid) as caught:
        verify(secret, message_id, stamp, body, signatures, now=now)
    assert secret not in caught.value.message
