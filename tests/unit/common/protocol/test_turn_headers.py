"""What the callback's headers say is read back as it was written, and what can't be read is named."""

import pytest

from rolloutpool_common.protocol.turn_headers import (
    TurnHeaders,
    TurnKey,
    describe_fingerprint,
    differing_files,
    write_fingerprint,
)
from rolloutpool_common.tokens.entries import TokenizerFingerprint


def test_protocol_v1_alone_says_nothing() -> None:
    assert TurnHeaders.parse({}) == TurnHeaders(key=None, attempt=None, digest=None)


def test_turn_2_is_no_second_try_of_turn_1() -> None:
    assert TurnKey.parse("b1-0/2") == TurnKey("b1-0", 2)
    assert TurnKey.parse("b1-0/2/2") == TurnKey("b1-0", 2, mask=2)


@pytest.mark.parametrize(
    "value", ["", "b1", "b1/", "/1", "b1/0", "b1/x", "b1/1/1", "b1/1/2/2", "a/b/1", "b1/²", "b1/-1"]
)
def test_a_key_of_another_form_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="Idempotency-Key must be"):
        TurnHeaders.parse({"Idempotency-Key": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("X-Rollout-Attempt", "0"), ("X-Rollout-Attempt", "x"), ("X-Echo-Prefix-Length", "-1")],
)
def test_a_number_that_is_none_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        TurnHeaders.parse({"X-Echo-Prefix-Digest": "d", name: value})


def test_fingerprints_agree_by_their_files() -> None:
    ours = TokenizerFingerprint(tokenizer_sha256="a", template_sha256="b", transformers_version="5.0")
    assert write_fingerprint(ours) == "a/b/5.0"
    assert differing_files("a/b/5.1", ours) == []
    assert differing_files("a/b/5.1/Qwen%2FQwen3", ours) == []
    assert differing_files("a/c/5.0", ours) == ["chat template: theirs has the sha256 c, ours b"]
    (vocabulary,) = differing_files("c/b/5.0", ours)
    assert vocabulary.startswith("tokenizer.json (vocabulary, merges, added tokens): theirs has the sha256 c")
    assert len(differing_files("c", ours)) == 2


def test_a_fingerprint_may_tell_the_tokenizers_name() -> None:
    ours = TokenizerFingerprint(tokenizer_sha256="a", template_sha256="b", transformers_version="5.0")
    written = write_fingerprint(ours, "Qwen/Qwen3-8B ü\n")
    assert written.isascii()
    assert "\n" not in written
    assert describe_fingerprint(written) == "'Qwen/Qwen3-8B ü\\n', transformers 5.0"
    assert describe_fingerprint("a/b/5.0") == "transformers 5.0"
    assert describe_fingerprint("nonsense") == ""
    assert len(describe_fingerprint(write_fingerprint(ours, "x" * 10_000))) < 130
