"""A parent's report of an end keeps its cause on the way through Redis, and says whether a rollout may be the cause."""

import pytest

from rolloutpool_common.protocol.process_end import EndCause, ProcessEnd


@pytest.mark.parametrize(
    ("end", "text", "suspicious"),
    [
        (ProcessEnd.of(0, told_to_stop=True), "stopped", False),
        (ProcessEnd.of(-15), "stopped", False),
        (ProcessEnd.of(-9), "killed", False),
        (ProcessEnd.of(-9, told_to_stop=True), "killed", False),
        (ProcessEnd.of(-9, oom=True), "oom", True),
        (ProcessEnd.of(-11), "signal:11", True),
        (ProcessEnd.of(-6, told_to_stop=True), "signal:6", True),
        (ProcessEnd.of(70), "exit:70", True),
        (ProcessEnd.of(70, told_to_stop=True), "exit:70", True),
        (ProcessEnd.of(0), "exit:0", True),
    ],
)
def test_an_end_is_named_by_its_cause(end: ProcessEnd, text: str, suspicious: bool) -> None:
    assert (str(end), end.suspicious) == (text, suspicious)
    assert ProcessEnd.parse(text) == end


def test_another_text_is_refused() -> None:
    with pytest.raises(ValueError, match="evaporated"):
        ProcessEnd.parse("evaporated")
    assert ProcessEnd.parse("signal:9") == ProcessEnd(EndCause.SIGNAL, 9)
