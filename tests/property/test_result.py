"""What `encode_result` writes is what the model's own dump writes, for any result that the model can hold."""

import dataclasses
import json
import types
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.support.examples import examples

from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import RolloutResult, encode_result

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
# pydantic writes an infinite number in a field of its own type, and JSON has none.
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | FLOATS | TEXT
JSON = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=5
)
TYPES: dict[Any, st.SearchStrategy[Any]] = {
    Any: JSON,
    str: TEXT,
    float: FLOATS,
    int: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
    type(None): st.none(),
    datetime: st.datetimes(timezones=st.just(UTC)),
    Message: st.builds(
        lambda known, others: Message.model_validate(others | known),
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]), "content": st.none() | TEXT}),
        st.dictionaries(
            TEXT.filter(lambda name: name.isidentifier() and name not in Message.model_fields), JSON, max_size=2
        ),
    ),
}


def values(of: Any) -> st.SearchStrategy[Any]:
    """Values of a type, as a model's field has it."""
    if of in TYPES:
        return TYPES[of]
    origin, arguments = get_origin(of), get_args(of)
    if origin is Annotated:
        return values(arguments[0])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values, arguments))
    if origin is list:
        return st.lists(values(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if issubclass(of, Enum):
        return st.sampled_from(of)
    if not issubclass(of, BaseModel):
        make: Callable[..., Any] = of
        return st.builds(make, **{field.name: values(field.type) for field in dataclasses.fields(of)})
    fields = {name: values(field.annotation) for name, field in of.model_fields.items()}
    return st.fixed_dictionaries(fields).map(lambda given: of.model_construct(**given))


@settings(
    max_examples=examples(50, 150),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(values(RolloutResult))
def test_it_is_the_models_own_dump(result: RolloutResult) -> None:
    written = json.loads(encode_result(result))
    assert written == json.loads(result.model_dump_json())
    assert list(written) == list(json.loads(result.model_dump_json()))
