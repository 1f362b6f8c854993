"""Searches the texts of all rollouts in a file, an answer at a time, for a page that asks until it has enough.

1. A question names the text and a cursor: how many rollouts were searched before. An answer ends after a quarter of a
   second or some hundred matches and gives the next cursor, so no question keeps a thread for long, and who stops
   asking stops the search.
2. One rollout at a time is read from the file, of which only the messages become objects. So memory and time do not
   depend on the file's size.
3. Of one rollout the first twenty matches are listed; an answer counts the rollouts that have more.

    GET /search?q=needle&after=0  ->  {"matches": [{"uid": …, "message": 3, "before": …, "found": "Needle", …}],
                                       "searched": 1250, "total": 10000, "next_cursor": "1250", "cut": 0, "unread": 0}
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import lru_cache
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl

from pydantic import BaseModel, Field, ValidationError

from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.token_pieces import TokenPieces
from rolloutpool_trainer.viewer.result_file import ResultFile, ResultLine
from rolloutpool_trainer.viewer.text_matches import (
    TextFinder,
    TextMatch,
    matches_in_messages,
    matches_in_tokens,
    texts_of_message,
)

SECONDS = 0.25
MATCHES = 100
"""After so many an answer ends; the last rollout's are all in it."""
MATCHES_OF_ROLLOUT = 20
LONGEST = 1000
"""Characters that may be sought."""


class _Transcript(BaseModel):
    """Holds what is read of a result: the other fields, tokens above all, do not become objects."""

    messages: list[Message] = Field(default_factory=list)


class _Unread(Exception):
    """A rollout has tokens but no text, and what its tokens read is not known."""


class FileSearch:
    """Answers the questions of a search. Safe to ask from several threads."""

    def __init__(self, file: ResultFile, pieces: Callable[[str], bytes | None] | None = None) -> None:
        """Makes a search."""
        self._file = file
        self._pieces = pieces
        self._vocabulary = lru_cache(maxsize=2)(self._load_vocabulary)

    def answer(self, query: str) -> tuple[int, dict[str, Any]]:
        """Searches on."""
        asked = dict(parse_qsl(query))
        sought, after = asked.get("q", ""), asked.get("after", "0")
        if not sought or len(sought) > LONGEST:
            return 422, _error(f"q must have 1 to {LONGEST} characters")
        if not (after.isascii() and after.isdigit() and len(after) < 12):
            return 422, _error("after must be a cursor of the search")
        lines = self._file.lines(asked.get("batch"))
        finder = TextFinder(sought, match_case=asked.get("case") == "1")
        deadline = time.monotonic() + SECONDS
        matches: list[dict[str, Any]] = []
        searched, cut, unread = min(int(after), len(lines)), 0, 0
        for line in islice(lines, searched, None):
            try:
                found = list(islice(self._matches(finder, line), MATCHES_OF_ROLLOUT + 1))
            except (_Unread, ValidationError):
                # The file was written anew, and this line is another one now; or its tokens have no text here.
                found = []
                unread += 1
            matches += [_listed(line, match) for match in found[:MATCHES_OF_ROLLOUT]]
            cut += len(found) > MATCHES_OF_ROLLOUT
            searched += 1
            if len(matches) >= MATCHES or time.monotonic() > deadline:
                break
        cursor = str(searched) if searched < len(lines) else None
        page = {"matches": matches, "searched": searched, "total": len(lines), "next_cursor": cursor}
        return 200, {**page, "cut": cut, "unread": unread}

    def _matches(self, finder: TextFinder, line: ResultLine) -> Iterator[TextMatch]:
        messages = self._file.read(line, _Transcript).messages
        if any(text for message in messages for _, text in texts_of_message(message)):
            return matches_in_messages(finder, messages)
        if not line.row["tokens"]:
            return iter(())
        result = self._file.read(line, RolloutResult)
        vocabulary = self._vocabulary(result.tokenizer.get("tokenizer_sha256"))
        if vocabulary is None:
            raise _Unread
        return matches_in_tokens(finder, result.samples, vocabulary.bytes_of)

    def _load_vocabulary(self, made_with: str | None) -> TokenPieces | None:
        found = self._pieces(made_with) if self._pieces is not None and made_with is not None else None
        return None if found is None else TokenPieces.model_validate_json(found)


def _listed(line: ResultLine, match: TextMatch) -> dict[str, Any]:
    row = line.row
    return {**{name: row[name] for name in ("uid", "rollout_id", "index")}, **asdict(match)}


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}
