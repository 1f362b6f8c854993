"""A file of results as the viewer's pages ask for it: the answers that a pool would give, made of the file alone.

1. The file has a result per line, as `rolloutpool results` writes it. One JSON document also counts: a result, a list
   of results, a page of `GET /v1/batches/{id}/results`, or the state of a rollout.
2. One pass keeps a row of each result and where its line lies. Only the lines that somebody looks at are read again, so
   a file may be larger than memory.
3. Lines that are added later are found at the next question. A last line that is no result may still be written, so it
   is tried again; other lines that are none are left out and counted, because a crash may have cut them.
"""

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.rows import ENDED_FIELDS, ROW_FIELDS, row_values
from rolloutpool_trainer.errors import UnreadableResults

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True)
class ResultLine:
    """A result in the file: its row, and where the rest of it is."""

    start: int
    """Offset of its first byte in the file; -1 for a document that is kept in memory."""
    size: int
    row: dict[str, Any]
    labels: Mapping[str, str]


_OF_A_VIEW = ("uid", "rollout_id", "index", "group", "status", "attempt", "worker", "turns")
_Batch = Mapping[str, ResultLine]
"""Lines by uid."""


class ResultFile:
    """Answers questions about the results in a file. Safe to ask from several threads."""

    def __init__(self, path: Path) -> None:
        """Reads the file."""
        self._path = path
        self._lock = threading.Lock()
        self._lines: dict[str, ResultLine] = {}
        self._batches: dict[str, dict[str, ResultLine]] = {}
        self._reached = 0
        self._size = -1
        """Of the file, when it was read last."""
        self._whole: dict[str, dict[str, Any]] = {}
        """Results of a file that is one document."""
        self.left_out = 0
        """Lines that are no results."""
        self._read_on()
        if not self._lines:
            self._read_document()

    @property
    def uids(self) -> list[str]:
        """The rollouts in the file, in its order."""
        return list(self._lines)

    @property
    def batch_ids(self) -> list[str]:
        """Their batches."""
        return list(self._batches)

    def answer(self, path: str, query: str) -> tuple[int, Any]:
        """Answers a GET of the pool's API."""
        with self._lock:
            self._read_on()
            match path.split("/")[1:]:
                case ["v1", "batches"]:
                    newest = reversed(self._batches.items())
                    return 200, {"batches": [_summary(name, batch) for name, batch in newest], "next_cursor": None}
                case ["v1", "batches", name] if name in self._batches:
                    return 200, _state(name, self._batches[name])
                case ["v1", "batches", name, "rollouts"] if name in self._batches:
                    return _table(name, self._batches[name], parse_qsl(query))
                case ["v1", "rollouts", *rest] if (line := self._find("/".join(rest))) is not None:
                    return 200, self._view(line)
        return 404, _error("this file does not hold it")

    def lines(self, batch: str | None = None) -> list[ResultLine]:
        """Lists the results that the file has by now, in its order; of one batch, if one is named."""
        with self._lock:
            self._read_on()
            return list((self._lines if batch is None else self._batches.get(batch, {})).values())

    def read(self, line: ResultLine, model: type[ModelT]) -> ModelT:
        """Reads a result, or the fields of it that a model names."""
        if line.start < 0:
            return model.model_validate(self._whole[line.row["uid"]])
        return model.model_validate_json(self._bytes(line))

    def _bytes(self, line: ResultLine) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(line.start)
                return file.read(line.size)
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> UnreadableResults:
        return UnreadableResults(f"cannot read {self._path}: {error.strerror}")

    def _find(self, name: str) -> ResultLine | None:
        if name in self._lines:
            return self._lines[name]
        return next((line for line in self._lines.values() if line.row["rollout_id"] == name), None)

    def _read_on(self) -> None:
        """Reads what was added since the last time."""
        if self._whole:
            return
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size == self._size:
                    return
                self._size = size
                file.seek(self._reached)
                while text := file.readline():
                    added = self._add(text, self._reached)
                    if not added and not text.endswith(b"\n"):
                        return
                    self.left_out += not added and bool(text.strip())
                    self._reached += len(text)
        except OSError as error:
            raise self._unreadable(error) from error

    def _add(self, text: bytes, start: int) -> bool:
        try:
            result = RolloutResult.model_validate_json(text)
        except ValidationError:
            return False
        self._keep(result, start, len(text))
        return True

    def _keep(self, result: RolloutResult, start: int, size: int) -> None:
        values = dict(zip(list(ENDED_FIELDS)[2:], row_values(result), strict=True))
        spans = result.spans
        # Results have no clock of their own: their times run from the acceptance of the batch.
        times = {"ended_ms": spans.queued_ms + spans.total_ms, "claimed_ms": spans.queued_ms}
        row = {"index": result.index, "uid": result.uid, "group": result.group, **times, **values}
        self._lines[result.uid] = ResultLine(start, size, row, result.labels)
        self._batches.setdefault(result.batch_id, {})[result.uid] = self._lines[result.uid]

    def _read_document(self) -> None:
        try:
            document = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise UnreadableResults(f"{self._path} holds neither a result per line nor JSON: {error}") from None
        for found in _results_in(document):
            try:
                result = RolloutResult.model_validate(found)
            except ValidationError as error:
                raise UnreadableResults(f"{self._path} holds what is no result: {_first(error)}") from None
            self._whole[result.uid] = result.model_dump(mode="json")
            self._keep(result, -1, 0)
        if not self._lines:
            raise UnreadableResults(f"{self._path} holds no results")
        self.left_out = 0

    def _view(self, line: ResultLine) -> dict[str, Any]:
        result = self._whole[line.row["uid"]] if line.start < 0 else json.loads(self._bytes(line))
        row = line.row
        view = {name: row[name] for name in _OF_A_VIEW}
        return {**view, "batch_id": result["batch_id"], "waiting": None, "result": result}


def _results_in(document: object) -> Iterator[object]:
    match document:
        case list():
            for entry in document:
                yield from _results_in(entry)
        case {"items": list(items)}:
            yield from _results_in(items)
        case {"result": dict(result)}:
            yield result
        case dict():
            yield document


def _counts(batch: _Batch) -> dict[str, int]:
    return dict(Counter(str(line.row["status"]) for line in batch.values()))


def _summary(name: str, batch: _Batch) -> dict[str, Any]:
    rows = [line.row for line in batch.values()]
    return {
        **_state(name, batch),
        "cancelled": False,
        "owner": None,
        "run": None,
        "turns": sum(row["turns"] for row in rows),
        "sampled_tokens": sum(row["sampled_tokens"] for row in rows),
        "failures": dict(Counter(f"{row['kind']}:{row['category']}" for row in rows if row["category"] is not None)),
        "age_s": None,
        "seconds": max(row["ended_ms"] for row in rows) / 1000,
    }


def _state(name: str, batch: _Batch) -> dict[str, Any]:
    first, *others = (line.labels.items() for line in batch.values())
    labels = dict(set(first).intersection(*others))
    counts, total = _counts(batch), len(batch)
    return {"batch_id": name, "state": "complete", "total": total, "counts": counts, "labels": labels, "waiting": []}


def _table(name: str, batch: _Batch, asked: list[tuple[str, str]]) -> tuple[int, Any]:
    fields = next((value.split(",") for key, value in asked if key == "fields"), list(ROW_FIELDS))
    rows = sorted((line.row for line in batch.values()), key=lambda row: int(row["index"]))
    for key, value in asked:
        if key != "where":
            continue
        column, equals, wanted = value.partition("=")
        if not equals or column not in ROW_FIELDS:
            return 422, _error("of a file, rows can be asked for by `where=FIELD=VALUE` alone")
        rows = [row for row in rows if str(row[column]) == wanted]
    columns = {column: [row[column] for row in rows] for column in fields if column in ROW_FIELDS}
    end = max((line.row["ended_ms"] for line in batch.values()), default=0)
    page = {"batch_id": name, "total": len(batch), "matched": len(rows), "created_ms": 0, "now_ms": end}
    return 200, {**page, "columns": columns, "next_cursor": None}


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}


def _first(error: ValidationError) -> str:
    found = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}" if found["loc"] else found["msg"]
