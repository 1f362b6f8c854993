"""What is known of a plug-in's error: bounded, with the user's line, and in the log once a minute."""

import json
import pickle
from collections.abc import Callable

import pytest

from rolloutpool_worker import plugin_errors
from rolloutpool_worker.plugin_errors import LONGEST_MESSAGE, LONGEST_TRACEBACK, PluginError


def caught(raising: Callable[..., object], *arguments: object) -> PluginError:
    try:
        raising(*arguments)
    except BaseException as error:
        return PluginError.of(error)
    pytest.fail("nothing was raised")


def read_document(text: str) -> object:
    password = "s3cret"
    return json.loads(text), password


def test_the_place_is_the_users_line_and_not_that_of_the_library_below_it() -> None:
    error = caught(read_document, "{")
    assert error.type == "JSONDecodeError"
    line = read_document.__code__.co_firstlineno + 2
    assert error.place == f"test_plugin_errors.py:{line} in read_document"
    assert str(error).endswith(f" ({error.place})")
    # The library's frames are in the traceback, and no values of variables.
    assert "decoder.py" in error.traceback
    assert "password" in error.traceback
    assert "s3cret" not in error.traceback
    assert pickle.loads(pickle.dumps(error)) == error


def test_what_a_policy_wrote_has_no_line_and_makes_no_names() -> None:
    error = caught(exec, "class Mine(KeyError): pass\nraise Mine('x')", {})
    assert (error.type, error.message) == ("KeyError", "'x'")
    assert "<string>" not in error.place


def test_an_error_of_any_size_is_bounded() -> None:
    def deep(n: int) -> object:
        return deep(n + 1)

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    def fail(error: BaseException) -> object:
        raise error

    groups: Exception = ValueError("inside")
    # Written out, it would be 3 to the power of 200 errors.
    for _ in range(200):
        groups = ExceptionGroup("of many", [groups] * 3)
    for error in (
        caught(deep, 0),
        caught(fail, ValueError("x" * 10_000_000)),
        caught(fail, ValueError("\ud800" * 1000)),
        caught(fail, Mute()),
        caught(fail, groups),
    ):
        assert len(error.message) <= 7 * LONGEST_MESSAGE
        assert len(error.traceback) <= LONGEST_TRACEBACK + 2000
        json.dumps([str(error), error.traceback]).encode()
        str(error).encode()
    assert str(caught(fail, groups)).startswith("ValueError: inside (test_plugin_errors.py")


def test_it_is_logged_once_a_minute_with_how_often_it_came(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    one, other = caught(read_document, "{"), caught(int, "x")
    for _ in range(10_000):
        one.log("tool search")
    other.log("tool search")
    one.log("grader search")
    clock[0] += 61
    one.log("tool search")
    logged = [vars(record)["event_fields"] for record in caplog.records]
    assert [(fields["plugin"], fields["error"], fields["unlogged"]) for fields in logged] == [
        ("tool search", "JSONDecodeError", 0),
        ("tool search", "ValueError", 0),
        ("grader search", "JSONDecodeError", 0),
        ("tool search", "JSONDecodeError", 9999),
    ]


def test_what_differs_in_type_or_place_alone_is_another_error(caplog: pytest.LogCaptureFixture) -> None:
    for kind, place in (("KeyError", "a.py:1 in f"), ("TypeError", "a.py:1 in f"), ("KeyError", "a.py:2 in f")) * 2:
        PluginError(kind, "", place).log("tool differs")
    logged = [vars(record)["event_fields"] for record in caplog.records]
    assert [(fields["error"], fields["place"]) for fields in logged] == [
        ("KeyError", "a.py:1 in f"),
        ("TypeError", "a.py:1 in f"),
        ("KeyError", "a.py:2 in f"),
    ]


def test_errors_of_any_number_of_lines_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_errors, "MOST_LOGGED", 10)
    for number in range(30):
        PluginError("ValueError", "", f"a.py:{number} in f").log("tool t")
    assert len(plugin_errors._logged) <= plugin_errors.MOST_LOGGED
