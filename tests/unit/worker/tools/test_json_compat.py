"""The parser of `json` in Python reads what the one in C reads."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_worker.tools.json_compat import FairDecoder

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def outcome(parse: Any, text: str) -> str:
    try:
        return repr(parse(text))
    except ValueError as error:
        return f"{type(error).__name__} {error}"


@given(JSON, st.integers(0, 40), st.text(max_size=2))
def test_the_fair_parser_reads_what_the_fast_one_reads_with_its_errors(document: Any, at: int, typo: str) -> None:
    text = json.dumps(document)
    decode = FairDecoder().decode
    assert outcome(decode, text) == outcome(json.loads, text)
    # And what a policy writes by mistake.
    broken = text[:at] + typo + text[at + 1 :]
    if not broken.startswith("\ufeff"):
        assert outcome(decode, broken) == outcome(json.loads, broken)
