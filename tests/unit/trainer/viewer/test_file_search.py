"""The texts of a file are searched an answer at a time, whatever its size; no line of it stops the search."""

import json
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.support.finished_rollouts import BYTES, forked, rollout, sample

from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_trainer.errors import UnreadableResults
from rolloutpool_trainer.viewer import file_search
from rolloutpool_trainer.viewer.file_search import FileSearch
from rolloutpool_trainer.viewer.result_file import ResultFile

ONE, TWO = "b" + "1" * 32, "b" + "2" * 32


def result(index: int, *texts: str, batch: str = ONE, **changes: Any) -> RolloutResult:
    """A rollout whose messages, from the user, the policy and a tool in turn, are these."""
    roles = ("user", "assistant", "tool")
    messages = [Message(role=roles[at % 3], content=text) for at, text in enumerate(texts)]
    base = rollout(sample("p", ("sampled", "tokens", 1)), messages=messages)
    place = {"uid": f"{batch}-{index}", "rollout_id": f"r{index}", "batch_id": batch, "index": index}
    return base.model_copy(update={**place, **changes})


def written(path: Path, *results: RolloutResult) -> ResultFile:
    path.write_bytes(b"".join(one.model_dump_json().encode() + b"\n" for one in results))
    return ResultFile(path)


def page(search: FileSearch, q: str, **asked: Any) -> dict[str, Any]:
    status, document = search.answer(urlencode({"q": q, **asked}))
    assert status == 200, document
    return dict(json.loads(json.dumps(document)))


def whole(search: FileSearch, q: str, **asked: Any) -> list[dict[str, Any]]:
    """All matches, answer after answer."""
    matches: list[dict[str, Any]] = []
    cursor: str | None = "0"
    while cursor is not None:
        found = page(search, q, after=cursor, **asked)
        matches += found["matches"]
        assert found["next_cursor"] is None or int(found["next_cursor"]) > int(cursor)
        cursor = found["next_cursor"]
    return matches


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def test_hits_name_row_message_and_what_stands_there(path: Path) -> None:
    search = FileSearch(written(path, result(0, "ask", "I look", "a Needle!"), result(1, "no"), result(2, "needle")))
    found = page(search, "needle")
    assert [
        (match["uid"], match["rollout_id"], match["index"], match["message"], match["role"])
        for match in found["matches"]
    ] == [
        (f"{ONE}-0", "r0", 0, 2, "tool"),
        (f"{ONE}-2", "r2", 2, 0, "user"),
    ]
    first = found["matches"][0]
    assert (first["before"], first["found"], first["after"], first["number"]) == ("a ", "Needle", "!", 0)
    assert {name: found[name] for name in ("searched", "total", "next_cursor", "cut", "unread")} == {
        "searched": 3,
        "total": 3,
        "next_cursor": None,
        "cut": 0,
        "unread": 0,
    }
    assert page(search, "absent")["matches"] == []
    assert [match["index"] for match in page(search, "Needle", case="1")["matches"]] == [0]


def test_special_characters_are_found_as_they_are(path: Path) -> None:
    text = 'a "quoted" \\ path\n\ttab <script> .* \u202e \u0000 100 % + & 日本 🙂'
    search = FileSearch(written(path, result(0, text)))
    for sought in ('"quoted"', "\\ path", "\n\t", "<SCRIPT>", ".*", "\u202e", "\u0000", "100 % + &", "日本 🙂", text):
        (match,) = page(search, sought)["matches"]
        assert match["found"].lower() == sought.lower()
    # As JSON writes them they are not there.
    for escaped in ("\\n", "\\u", '\\"', '"content"', "messages"):
        assert page(search, escaped)["matches"] == []


def test_an_answer_ends_after_so_many_hits_and_the_next_goes_on(path: Path) -> None:
    texts = [result(index, "needle " * 7) for index in range(40)]
    search = FileSearch(written(path, *texts))
    first = page(search, "needle")
    assert len(first["matches"]) == 105
    assert (first["searched"], first["next_cursor"]) == (15, "15")
    matches = whole(search, "needle")
    assert [(match["index"], match["number"]) for match in matches] == [(i, m) for i in range(40) for m in range(7)]


def test_an_answer_ends_in_time_and_every_answer_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = FileSearch(written(path, *(result(index, "needle") for index in range(5))))
    monkeypatch.setattr(file_search, "SECONDS", -1.0)
    assert page(search, "absent")["next_cursor"] == "1"
    assert [match["index"] for match in whole(search, "needle")] == list(range(5))


@pytest.mark.parametrize(
    "wrong",
    [
        {"q": ""},
        {},
        {"q": "x" * 1001},
        {"q": "x", "after": "-1"},
        {"q": "x", "after": "²"},
        {"q": "x", "after": "9" * 12},
    ],
)
def test_questions_that_are_none_are_refused(path: Path, wrong: Mapping[str, str]) -> None:
    status, document = FileSearch(written(path, result(0, "x"))).answer(urlencode(wrong))
    assert status == 422
    assert document["error"]["message"]


def test_a_cursor_after_the_end_finds_nothing_until_the_file_has_grown(path: Path) -> None:
    search = FileSearch(written(path, result(0, "needle")))
    assert page(search, "needle", after="1")["matches"] == []
    assert page(search, "needle", after="99999")["next_cursor"] is None
    with path.open("ab") as growing:
        growing.write(result(1, "Needle").model_dump_json().encode())
    assert [match["index"] for match in page(search, "needle", after="1")["matches"]] == [1]


def test_tokens_are_searched_where_no_message_has_text_and_what_they_read_is_known(path: Path) -> None:
    silent = forked(tokenizer={"tokenizer_sha256": "bytes"}, messages=[Message(role="user", content="")])
    other = rollout(sample("sure?"), uid=f"{ONE}-1", tokenizer={"tokenizer_sha256": "another"})
    nameless = rollout(sample("sure?"), uid=f"{ONE}-2")
    spoken = forked(uid=f"{ONE}-3", messages=[Message(role="user", content="something else")])
    empty = rollout(uid=f"{ONE}-4")
    file = written(path, silent, other, nameless, spoken, empty)
    pieces = {"bytes": BYTES.model_dump_json().encode()}
    found = page(FileSearch(file, pieces.get), "sure?")
    (match,) = found["matches"]
    assert (match["uid"], match["kind"], match["sample"], match["turn"], match["message"]) == (
        silent.uid,
        "tokens",
        1,
        2,
        None,
    )
    assert found["unread"] == 2
    # Without a tokenizer no tokens are searched, and the answer says of how many rollouts.
    found = page(FileSearch(file), "sure?")
    assert (found["matches"], found["unread"], found["searched"]) == ([], 3, 5)


def test_broken_lines_are_none_of_its_business(path: Path) -> None:
    good = result(0, "needle").model_dump_json().encode()
    later = result(1, "needle").model_dump_json().encode()
    path.write_bytes(
        b"\n".join([good[:300], b"needle", b"\xff\xfe", b'{"messages": [{"content": "needle"}]}', good, later[:-9]])
    )
    found = page(FileSearch(ResultFile(path)), "needle")
    assert ([match["index"] for match in found["matches"]], found["total"]) == ([0], 1)


def test_a_file_that_is_one_document_is_searched_too(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(
        json.dumps([json.loads(result(index, f"needle {index}").model_dump_json()) for index in range(2)], indent=1)
    )
    assert [match["after"] for match in page(FileSearch(ResultFile(path)), "needle")["matches"]] == [" 0", " 1"]


def test_a_file_that_was_written_anew_or_went_away_is_said(path: Path) -> None:
    search = FileSearch(written(path, result(0, "needle"), result(1, "needle")))
    path.write_bytes(b"x" * path.stat().st_size)
    found = page(search, "needle")
    assert (found["matches"], found["unread"]) == ([], 2)
    path.unlink()
    with pytest.raises(UnreadableResults, match="cannot read"):
        search.answer("q=needle")


def test_one_line_of_100_mb(path: Path) -> None:
    lines = result(0, "@"), result(1, "the needle")
    text = b"hay " * 25_000_000
    with path.open("wb") as file:
        file.write(lines[0].model_dump_json().encode().replace(b"@", text + b"Needle " + b"end") + b"\n")
        file.write(lines[1].model_dump_json().encode() + b"\n")
    del text
    matches = whole(FileSearch(ResultFile(path)), "needle")
    assert [(match["index"], match["after"]) for match in matches] == [(0, " end"), (1, "")]


def test_a_file_is_not_read_into_memory(path: Path) -> None:
    long = ["hay " * 250_000, "needle"]
    file = written(path, *(result(index, *long) for index in range(12)))
    assert path.stat().st_size > 12_000_000
    search = FileSearch(file)
    tracemalloc.start()
    matches = whole(search, "needle")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(matches) == 12
    assert most < 6_000_000
