"""Strict JSON: what other readers would refuse or change is refused here."""

import pytest

from rolloutpool_api import body
from rolloutpool_api.body import parse, refuse_repeated_keys


@pytest.fixture(autouse=True, params=[1_000_000, -1], ids=["small", "large"])
def size_from_which_bodies_are_large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "FROM_BYTES", request.param)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "[-Infinity]",
        "1e999",
        "-1E+0999",
        "[2, 1.8e308]",
        '{"a":1.5e400}',
        "9" * 309 + ".5e0",
        "1" * 299 + ".5e99",
        "9" * 400 + ".0",
        r'"\ud800"',
        r'"\udc00\ud800"',
        "[" * 202 + "]" * 202,
        "\ufeff{}",
        '{"a": 1,}',
        "{} {}",
        "'x'",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line 1 column"):
        parse(text.encode())


def test_invalid_utf8_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1 column"):
        parse(b'"\xff"')


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\ud83d\ude00\u0000"', "\U0001f600\x00"),
        ("18446744073709551616", 2**64),
        ("[" * 201 + "]" * 201, None),
        ("1E5", 100000.0),
    ],
)
def test_accepted(text: str, value: object) -> None:
    parsed = parse(text.encode())
    assert value is None or parsed == value


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"a": 1, "b": 2, "a": 1}', "'a'"),
        ('{"rollouts": [{"messages": [{"role": "user", "role": "system"}]}]}', "'role'"),
        (r'{"a": 1, "\u0061": 2}', "'a'"),
        ('{"": {}, "": {}}', "''"),
    ],
)
def test_a_repeated_key_is_named(text: str, key: str) -> None:
    with pytest.raises(ValueError, match=f"the key {key} occurs twice"):
        refuse_repeated_keys(text.encode())


@pytest.mark.parametrize(
    "text", ['{"a": {"a": 1}, "A": {"a": 1}}', '[{"a": 1}, {"a": 1}]', "[" * 201 + "]" * 201, "9" * 5000, "1.5", '"a"']
)
def test_the_same_key_in_other_objects_is_none(text: str) -> None:
    refuse_repeated_keys(text.encode())
