"""A file of results that grows, was cut, or is something else; `test_recorded_batches` has its answers."""

import json
import random
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from tests.support.finished_rollouts import forked, rollout, sample

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_trainer.errors import UnreadableResults
from rolloutpool_trainer.viewer.result_file import ResultFile

ONE, TWO = "b" + "1" * 32, "b" + "2" * 32


def results(batch: str, count: int, **changes: Any) -> list[RolloutResult]:
    return [
        forked(group=f"g{index // 2}", labels={"step": "3", "n": str(index)}, **changes).model_copy(
            update={"uid": f"{batch}-{index}", "batch_id": batch, "index": index, "rollout_id": f"{batch[1]}/r{index}"}
        )
        for index in range(count)
    ]


def lines(found: list[RolloutResult]) -> bytes:
    return b"".join(result.model_dump_json().encode() + b"\n" for result in found)


def asked(file: ResultFile, path: str, query: str = "") -> Any:
    status, document = file.answer(path, query)
    assert status == 200, document
    return json.loads(json.dumps(document))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "results.jsonl"
    file.write_bytes(lines(results(ONE, 4) + results(TWO, 2, status=RolloutStatus.FAILED)))
    return file


def test_rows_of_a_file_are_asked_for_by_equality_alone(path: Path) -> None:
    assert ResultFile(path).answer(f"/v1/batches/{ONE}/rollouts", "where=turns%3E3")[0] == 422


def test_a_file_that_grows_is_followed(path: Path) -> None:
    file = ResultFile(path)
    more = lines(results(TWO, 4)[2:])
    with path.open("ab") as growing:
        growing.write(more[:100])
        growing.flush()
        assert asked(file, f"/v1/batches/{TWO}")["total"] == 2
        growing.write(more[100:-1])
        growing.flush()
        # The last line has no end, but it is a result.
        assert asked(file, f"/v1/batches/{TWO}")["total"] == 4
        growing.write(more[-1:] + lines(results(TWO, 1)))
        growing.flush()
    # A result that comes twice counts once, and is the later one.
    assert asked(file, f"/v1/batches/{TWO}")["counts"] == {"failed": 1, "completed": 3}
    assert file.left_out == 0


def test_lines_that_a_crash_cut_are_left_out_and_counted(path: Path) -> None:
    whole = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([whole[0][:500], b"", whole[1], b"\xff\xfe", b"{}", b"[]", whole[2]]))
    file = ResultFile(path)
    assert file.uids == [f"{ONE}-1", f"{ONE}-2"]
    assert file.left_out == 4


@pytest.mark.parametrize("shape", ["result", "list", "page", "view", "pretty"])
def test_one_document_counts_too(tmp_path: Path, shape: str) -> None:
    found = [result.model_dump(mode="json") for result in results(ONE, 2)]
    documents: dict[str, Any] = {
        "result": found[0],
        "list": found,
        "page": {
            "items": [{"cursor": "1", "result": result} for result in found],
            "next_cursor": "2",
            "complete": True,
        },
        "view": {"uid": f"{ONE}-0", "status": "completed", "result": found[0]},
        "pretty": found,
    }
    path = tmp_path / "file.json"
    path.write_text(json.dumps(documents[shape], indent=1 if shape == "pretty" else None))
    file = ResultFile(path)
    assert file.uids[0] == f"{ONE}-0"
    assert len(file.uids) == (1 if shape in ("result", "view") else 2)
    assert file.left_out == 0
    assert asked(file, f"/v1/rollouts/{ONE}-0")["result"] == found[0]


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", b"nonsense", b"[]", b"{}", b"[[[[", b'{"items": []}', b"\x00" * 1000, b"[" * 100_000, b"null", b"7"],
)
def test_what_holds_no_results_is_refused_with_a_reason(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UnreadableResults, match=re.escape(str(path))):
        ResultFile(path)


def test_what_is_not_there_or_goes_away_is_said(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UnreadableResults, match="cannot read"):
        ResultFile(tmp_path / "missing")
    with pytest.raises(UnreadableResults, match="cannot read"):
        ResultFile(tmp_path)
    file = ResultFile(path)
    path.unlink()
    with pytest.raises(UnreadableResults, match="cannot read"):
        file.answer("/v1/batches", "")


def test_rows_are_kept_and_results_are_not(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    long = "word " * 40_000
    path.write_bytes(
        lines(
            [
                rollout(sample("p", ("sampled", long, 1))).model_copy(
                    update={"uid": f"{ONE}-{i}", "batch_id": ONE, "index": i}
                )
                for i in range(5)
            ]
        )
    )
    assert path.stat().st_size > 5_000_000
    tracemalloc.start()
    file = ResultFile(path)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 300_000
    assert len(file.uids) == 5


def test_a_line_is_read_as_far_as_somebody_names_fields(path: Path) -> None:
    class Label(BaseModel):
        labels: dict[str, str]

    file = ResultFile(path)
    assert [line.row["uid"] for line in file.lines(TWO)] == [f"{TWO}-0", f"{TWO}-1"]
    assert len(file.lines()) == 6
    assert file.lines("b3") == []
    assert file.read(file.lines(ONE)[3], Label).labels == {"step": "3", "n": "3"}
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(ValidationError):
        file.read(file.lines()[0], Label)


def test_a_last_line_without_an_end_is_tried_again_only_when_the_file_has_grown(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    add = ResultFile._add

    def counted(file: ResultFile, text: bytes, start: int) -> bool:
        tried.append(start)
        return add(file, text, start)

    monkeypatch.setattr(ResultFile, "_add", counted)
    with path.open("ab") as growing:
        growing.write(b'{"uid"')
    file = ResultFile(path)
    tried.clear()
    for _ in range(3):
        assert asked(file, "/v1/batches")["batches"]
    assert tried == []
    with path.open("ab") as growing:
        growing.write(b": 7}\n")
    assert asked(file, "/v1/batches")["batches"]
    assert (len(tried), file.left_out) == (1, 1)


def test_random_bytes_never_break_it(tmp_path: Path) -> None:
    chance = random.Random(7)
    good = lines(results(ONE, 2))
    path = tmp_path / "file"
    for _ in range(100):
        damaged = bytearray(good)
        for _ in range(chance.randrange(1, 40)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(bytes(damaged))
        try:
            file = ResultFile(path)
        except UnreadableResults:
            continue
        for uid in file.uids:
            assert file.answer(f"/v1/rollouts/{uid}", "")[0] == 200
