"""Plain arguments: what is seen to fit fits to the validator as well, and what usual tools get is seen to fit."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from rolloutpool_worker.tools.calculator import ADD
from rolloutpool_worker.tools.plain_arguments import PlainArguments

PROPERTIES = st.dictionaries(
    st.sampled_from("abc"),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", "integer", "number", "boolean", "array", "null", ["string", "null"], 5])},
        optional={"default": st.none(), "minimum": st.just(2), "enum": st.just([1, "x"])},
    ),
    max_size=3,
)
SCHEMAS = st.fixed_dictionaries(
    {"type": st.sampled_from(["object", "object", "array"]), "properties": PROPERTIES},
    optional={
        "required": st.one_of(st.lists(st.sampled_from("abcd"), max_size=2, unique=True), st.just([{}])),
        "additionalProperties": st.sampled_from([True, False, {"type": "string"}]),
        "title": st.just("t"),
        "minProperties": st.just(2),
    },
)
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [0, 1, -2, 2.0, 2.5, True, False, None, "x", "", [], {}, 10**30, float("inf")]
)
ARGUMENTS = st.dictionaries(st.sampled_from("abcd"), VALUES) | VALUES


@given(SCHEMAS, ARGUMENTS)
def test_what_is_seen_to_fit_fits(schema: dict[str, Any], arguments: Any) -> None:
    plain = PlainArguments.of(schema)
    if plain is not None and plain.fit(arguments):
        assert next(iter(Draft202012Validator(schema).iter_errors(arguments)), None) is None


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({"a": 1, "b": 2.5}, True),
        ({"a": 1, "b": 2, "c": None}, True),
        ({"a": 1}, False),
        ({"a": 1, "b": True}, False),
        ({"a": 1, "b": "2"}, False),
        ([1, 2], False),
    ],
)
def test_the_calculator_is_plain(arguments: Any, fits: bool) -> None:
    plain = ADD.plain_arguments
    assert plain is not None
    assert plain.fit(arguments) is fits
