"""The journal of a rollout that has ended, kept in its result as `replay.journal`.

Most of a journal is in the result anyway: messages, summaries of turns, ids, log-probabilities. So it is compressed
against them with zstd, and holds what the result lacks because nothing else is left:

    result   messages, turns, samples      -> parts of bytes: together, the dictionary of the compression
    journal  submitted messages, records   -> a document of bytes, in the same forms
    kept     zstd(document, dictionary), with a check for each part

`read_journal` gives back the very records that the worker wrote. Two things are worth knowing:

- Ids and log-probabilities are binary in both, and what is of one kind stands together in both. Then a rollout's
  messages are one run of bytes, and so are its ids, and each is found again as a whole.
- Digests of contexts (`after`) are left out. They follow from the ids, and are computed again.

A result that was changed gives other parts. The checks say which of them; they are no signatures, and whoever changes a
result can change them. Masks and segments are in no part: they follow from the journal, and a replay compares them.
"""

import re
from array import array
from base64 import b64decode, b64encode
from binascii import a2b_base64, crc32
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from typing import Any, NamedTuple

import orjson
import zstandard
from pydantic import TypeAdapter

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.protocol.journal import (
    EnvironmentRecord,
    JournalRecord,
    ObservationRecord,
    TurnRecord,
    parse_record,
)
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import RolloutResult, Sample, ToolTime
from rolloutpool_common.tokens.arrays import float_bytes, id_bytes, pack_bytes, sliced, unpack
from rolloutpool_common.tokens.comparison import first_difference
from rolloutpool_common.tokens.context_fold import ContextFold
from rolloutpool_common.tokens.entries import Entry, SampledEntry

_FORM = 1
_LEVEL = 3
"""Of zstd. What is in the dictionary is found at any level, and what is not is mostly digests and times."""
_LONGEST_WINDOW = 27
"""Binary logarithm of the bytes that zstd looks back; its readers refuse more unless they are told."""
_SMALLEST_TABLE, _LARGEST_TABLE = 14, 24
"""Binary logarithm of the places of the dictionary that zstd notes, with 4 bytes for each; every eighth is enough."""
_DIGEST = re.compile(r"[0-9a-f]{32}")
"""A digest that is kept as 16 bytes. Another text is kept as it is."""
_TIMES = {"turn": "llm_ms", "observation": "tools_ms"}
"""By kind of record: a field whose digits the result does not have. They compress best where they stand together."""
_WORDS = (
    b'{"entries":[{"ids":0,"op":"seed","fingerprint":{"ids":0,"op":"fork","keep":0},{"ids":0,"op":"tail","keep":0},'
    b'{"ids":0,"op":"text","kind":"synth_close","turn":1},{"messages":1,"entries":[{"ids":0,"op":"text","kind":"glue",'
    b'"turn":1}],"planned":{"plan":{"lengths":[1],"exact":1,"rerender":null,"parsed":null},"digest":null,"edited":false},'
    b'"tool_calls":1,"warnings":[],"times":1,"environment":null,"kind":"observation"},{"entries":[{"ids":0,"op":"sampled",'
    b'"turn":1,"policy_version":null,"train":true}],"trainer":"keeps_ids","zero_logprobs":false,"kind":"turn"},'
)
"""What rows look like, so that a short journal need not say it. It may only change with `_FORM`."""


_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])


class JournalMissing(RolloutPoolError):
    """The result carries no journal that this release reads."""


class ResultChanged(RolloutPoolError):
    """The result is not what its worker wrote, so its journal cannot be read."""

    def __init__(self, parts: Sequence[str]) -> None:
        """Names the parts that were changed; none where it is the journal itself."""
        super().__init__(f"it was changed since its worker wrote it: {', '.join(parts) or 'its journal'}")
        self.parts = tuple(parts)


@dataclass(frozen=True)
class KeptJournal:
    """Holds what a rollout's worker has kept."""

    submitted: list[dict[str, Any]]
    """The rollout's own messages, as they were submitted."""
    records: list[JournalRecord]
    """All of its journal."""


class _Part(NamedTuple):
    """Something of the result that the journal is compressed against."""

    name: str
    data: bytes


def keep_journal(records: Sequence[JournalRecord], submitted: Sequence[dict[str, Any]], result: RolloutResult) -> str:
    """Writes a journal for its result."""
    parts = list(_parts(result))
    document = _Columns(submitted).write(records)
    dictionary = _dictionary(parts)
    length = (len(dictionary) + len(document)).bit_length()
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL,
        source_size=len(document),
        dict_size=len(dictionary),
        # All of the dictionary can be looked back to from each byte of the document, and is noted well enough to find
        # what stands anywhere in it. By itself zstd forgets most of a long one.
        window_log=max(zstandard.WINDOWLOG_MIN, min(_LONGEST_WINDOW, length)),
        hash_log=max(_SMALLEST_TABLE, min(_LARGEST_TABLE, len(dictionary).bit_length() - 3)),
        write_checksum=True,
    )
    packed = zstandard.ZstdCompressor(
        dict_data=zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT),
        compression_params=parameters,
    ).compress(document)
    checks = array("I", [crc32(part.data) for part in parts])
    return b64encode(b"".join((bytes((_FORM,)), _uint32(len(checks)), id_bytes(checks), packed))).decode("ascii")


def read_journal(result: RolloutResult) -> KeptJournal:
    """Reads the journal that a result carries."""
    if result.replay is None:
        raise JournalMissing(
            "it carries no record: its batch wanted none (replay_record), nothing was sampled, what was is not "
            "delivered (stale, quarantined), or a program led it"
        )
    if result.replay.journal is None:
        raise JournalMissing("its record is of release 0.2; use that release to replay or fork it")
    try:
        kept = b64decode(result.replay.journal, validate=True)
    except ValueError:
        raise ResultChanged(()) from None
    if kept[:1] != bytes((_FORM,)):
        raise JournalMissing("its record is of a newer release; use that release to replay or fork it")
    parts = list(_parts(result))
    count = int.from_bytes(kept[1:5], "little")
    checks, packed = kept[5 : 5 + 4 * count], kept[5 + 4 * count :]
    names = [part.name for place, part in enumerate(parts) if checks[4 * place :][:4] != _uint32(crc32(part.data))]
    if names or count != len(parts):
        raise ResultChanged(names or ("samples",))
    dictionary = zstandard.ZstdCompressionDict(_dictionary(parts), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    try:
        document = zstandard.ZstdDecompressor(dict_data=dictionary).decompress(packed)
    except zstandard.ZstdError:
        raise ResultChanged(()) from None
    return _Reader(document).read()


def _parts(result: RolloutResult) -> Iterator[_Part]:
    """Cuts a result into what its journal is compressed against. It says nothing of how the result was written."""
    yield _Part("tokenizer", orjson.dumps(result.tokenizer))
    yield _Part("messages", _MESSAGES.dump_json(result.messages))
    turns = [vars(turn).copy() for turn in result.turns]
    # These stand in observations.
    tools = [tool for turn in turns for tool in turn.pop("tools")]
    yield _Part("turns", orjson.dumps(turns) + orjson.dumps(tools))
    before = array("I")
    for place, sample in enumerate(result.samples):
        ids = array("I")
        for values in (sample.prompt_ids, sample.response_ids):
            for part in sliced(values):
                ids += array("I", part)
        # A trainer that renders history again makes many samples of one prompt.
        shared = first_difference(before, ids)
        if shared is None:
            shared = len(ids)
        lengths = _uint32(shared) + _uint32(len(sample.prompt_ids))
        yield _Part(f"sample {place}", lengths + id_bytes(ids[shared:]) + _logprob_bytes(sample))
        before = ids


def _logprob_bytes(sample: Sample) -> bytes:
    # Without zeros: most stand where nothing was sampled, and some JSON libraries write -0.0 as 0.
    logprobs = array("d")
    for part in sliced(sample.response_logprobs):
        logprobs += array("d", list(filter(None, part)))
    return float_bytes(logprobs)


def _dictionary(parts: Sequence[_Part]) -> bytes:
    return b"".join((_WORDS, *(part.data for part in parts)))


def _uint32(value: int) -> bytes:
    return value.to_bytes(4, "little")


class _Columns:
    """A journal, taken apart: what the records have of one kind stands together, and a row for each says the rest."""

    def __init__(self, submitted: Sequence[dict[str, Any]]) -> None:
        self._submitted = len(submitted)
        self._messages = list(submitted)
        self._turns: list[dict[str, Any]] = []
        self._tools: list[ToolTime] = []
        self._ids: list[bytes] = []
        self._logprobs: list[bytes] = []
        self._times: list[float] = []
        self._digests: list[bytes] = []

    def write(self, records: Sequence[JournalRecord]) -> bytes:
        """Returns the document."""
        rows = [self._row(record) for record in records]
        columns = (self._submitted, self._messages, self._turns, self._tools, self._times, rows)
        text = orjson.dumps(columns, default=vars)
        return b"".join((_uint32(len(text)), text, *self._ids, *self._logprobs, *self._digests))

    def _row(self, record: JournalRecord) -> dict[str, Any]:
        row = vars(record).copy()
        # The form follows from the branch, and most rollouts have one branch.
        del row["v"]
        if not record.branch:
            del row["branch"]
        row["entries"] = [self._bare(entry) for entry in record.entries]
        if isinstance(record, TurnRecord):
            self._messages.append(row.pop("message"))
            summary = vars(row.pop("summary")).copy()
            if not summary["tools"]:
                del summary["tools"]
            self._turns.append(summary)
            self._times.append(row.pop("llm_ms"))
            return row
        self._messages += record.messages
        row["messages"] = len(record.messages)
        if isinstance(record, ObservationRecord):
            self._tools += record.times
            row["times"] = len(record.times)
            self._times.append(row.pop("tools_ms"))
        if not isinstance(record, EnvironmentRecord) and _DIGEST.fullmatch(record.planned.digest):
            self._digests.append(bytes.fromhex(record.planned.digest))
            row["planned"] = {**vars(record.planned), "digest": None}
        return row

    def _bare(self, entry: Entry) -> dict[str, Any]:
        bare = vars(entry).copy()
        del bare["after"]
        ids = a2b_base64(entry.ids)
        self._ids.append(ids)
        bare["ids"] = len(ids) // 4
        if isinstance(entry, SampledEntry):
            self._logprobs.append(a2b_base64(bare.pop("logprobs")))
        return bare


class _Reader:
    """A document, put together again: each record takes its own of what stands together."""

    def __init__(self, document: bytes) -> None:
        start = 4 + int.from_bytes(document[:4], "little")
        submitted, messages, turns, tools, times, self._rows = orjson.loads(document[4:start])
        self._submitted, self._messages = messages[:submitted], iter(messages[submitted:])
        self._turns, self._tools, self._times = iter(turns), iter(tools), iter(times)
        entries = [entry for row in self._rows for entry in row["entries"]]
        logprobs = start + 4 * sum(entry["ids"] for entry in entries)
        digests = logprobs + 8 * sum(entry["ids"] for entry in entries if entry["op"] == "sampled")
        self._ids, self._logprobs = BytesIO(document[start:logprobs]), BytesIO(document[logprobs:digests])
        self._digests = BytesIO(document[digests:])
        self._contexts: defaultdict[int, ContextFold] = defaultdict(ContextFold)

    def read(self) -> KeptJournal:
        """Returns what the document was made of."""
        return KeptJournal(self._submitted, [parse_record(orjson.dumps(self._record(row))) for row in self._rows])

    def _record(self, row: dict[str, Any]) -> dict[str, Any]:
        if row["kind"] == "turn":
            row["message"], row["summary"] = next(self._messages), next(self._turns)
        elif "messages" in row:
            row["messages"] = list(islice(self._messages, row["messages"]))
        if "times" in row:
            row["times"] = list(islice(self._tools, row["times"]))
        if (name := _TIMES.get(row["kind"])) is not None:
            row[name] = next(self._times)
        if "planned" in row and row["planned"]["digest"] is None:
            row["planned"]["digest"] = self._digests.read(16).hex()
        context = self._contexts[row.setdefault("branch", 0)]
        for entry in row["entries"]:
            ids = pack_bytes(self._ids.read(4 * entry["ids"]))
            if entry["op"] == "sampled":
                entry["logprobs"] = pack_bytes(self._logprobs.read(8 * entry["ids"]))
            entry |= {"ids": ids, "after": context.add(unpack(ids, array("I")), entry.get("keep"))}
        return row
