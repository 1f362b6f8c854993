"""Parsers of the package `renderers`: what becomes of what they report, and what is said where it is not installed.

The package itself is compared with our parsers in `tests/parsers`. Here a stand-in reports each of its statuses.
"""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from tests.golden.catalogue import TOOL
from tests.support.tiny_tokenizers import MakeTokenizer

from rolloutpool_common.rendering import ChatTokenizer, TurnParser
from rolloutpool_common.rendering.parsing import renderers_package
from rolloutpool_common.rendering.parsing.found import CallStatus
from rolloutpool_common.rendering.parsing.renderers_package import IdsParser
from rolloutpool_common.rendering.parsing.turn_parser import ParserMissing, needs_renderers

PLAIN = "{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}"


class StandIn:
    """Answers as a renderer does."""

    def __init__(self, *calls: dict[str, Any], content: str = "", error: Exception | None = None) -> None:
        self.asked: dict[str, Any] = {}
        self._calls, self._content, self._error = calls, content, error

    def parse_response(self, ids: list[int], **asked: Any) -> Any:
        self.asked = {"ids": ids, **asked}
        if self._error is not None:
            raise self._error
        known = {"name": None, "arguments": None, "status": "ok"}
        calls = [SimpleNamespace(**{**known, **call}) for call in self._calls]
        return SimpleNamespace(content=self._content, reasoning_content="so", tool_calls=calls)


def find(stand_in: StandIn, text: str = "one [a] two [b]") -> Any:
    return IdsParser(stand_in).find([1, 2], after=[3], text=text, tools=[TOOL])


def test_it_is_given_ids_functions_and_the_prompts_end() -> None:
    stand_in = StandIn()
    found = find(stand_in)
    assert stand_in.asked == {"ids": [1, 2], "tools": [TOOL["function"]], "prompt_ids": [3]}
    assert (found.reasoning, found.calls) == ("so", ())


def test_its_calls_are_ours() -> None:
    first = {"raw": "[a]", "name": "add", "arguments": {"a": 1}}
    second = {"raw": "[b]", "name": "unheard", "arguments": "{}", "status": "unknown_tool"}
    found = find(StandIn(first, second, content="one  two "))
    assert [(call.name, call.arguments, call.status) for call in found.calls] == [
        ("add", '{"a": 1}', CallStatus.OK),
        ("unheard", "{}", CallStatus.OK),
    ]
    assert [(call.start, call.end) for call in found.calls] == [(4, 7), (12, 15)]
    assert found.content == "one  two "


@pytest.mark.parametrize(
    ("status", "ours"),
    [
        ("invalid_json", CallStatus.INVALID),
        ("missing_name", CallStatus.INVALID),
        ("malformed_structure", CallStatus.INVALID),
        ("something_new", CallStatus.INVALID),
        ("unclosed_block", CallStatus.UNCLOSED),
        ("ok", CallStatus.INVALID),
    ],
)
def test_what_cannot_be_run_says_why(status: str, ours: CallStatus) -> None:
    # Without arguments, `ok` is not believed.
    found = find(StandIn({"raw": "[b]", "status": status}, content="one [a] two [b]"))
    (call,) = found.calls
    assert (call.status, bool(call.fault), found.content) == (ours, True, "one [a] two ")


def test_a_parser_that_fails_makes_no_content_of_a_call() -> None:
    found = find(StandIn(error=RuntimeError("broken\nbadly")))
    (call,) = found.calls
    assert (call.start, call.end, call.status) == (0, 15, CallStatus.UNCLOSED)
    assert "RuntimeError: broken" in call.fault
    assert "badly" not in call.fault


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package of this name, whatever is installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "renderers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "renderers", None)


@pytest.mark.usefixtures("absent")
def test_without_the_package_a_clear_refusal(tiny: ChatTokenizer, make_tokenizer: MakeTokenizer) -> None:
    assert not renderers_package.is_installed()
    assert not needs_renderers(tiny, "renderers/qwen3")
    with pytest.raises(ParserMissing, match="needs the package `renderers`"):
        TurnParser.of(tiny, [TOOL], "renderers/qwen3")
    with pytest.raises(ParserMissing, match=r"response_template.*package `renderers`"):
        TurnParser.of(make_tokenizer(PLAIN), [TOOL])
