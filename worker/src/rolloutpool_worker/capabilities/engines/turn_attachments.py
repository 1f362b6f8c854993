"""What an engine says of a rollout's ids besides log-probabilities, kept in memory until its conversation has ended.

Nothing of it is journaled, so an attempt has only what it has sampled itself. The turns before that, of an attempt that
has ended without a result, are missing. Turns with which a rollout begins have theirs where they were sampled.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rolloutpool_common.capabilities.engines.attachments import AttachmentLack
from rolloutpool_common.capabilities.engines.kept import PackedPiece, write_pieces
from rolloutpool_common.capabilities.engines.wire import AttachmentKind, AttachmentsReport
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.result import Sample


class TurnAttachments:
    """The attachments of one attempt at one rollout."""

    def __init__(self, spec: RolloutSpec, most_bytes: int, begins: int = 1) -> None:
        """Has none yet; turns before `begins` have theirs elsewhere."""
        self._kinds: Sequence[AttachmentKind] = list(dict.fromkeys(spec.attach))
        self._begins = begins
        self._most = most_bytes
        self._pieces: list[PackedPiece] = []
        self._size = 0

    def add(self, pieces: Sequence[PackedPiece]) -> None:
        """Keeps what one turn has. What is too much is left out, and says so."""
        # An API of an older version has promised nothing.
        for piece in pieces if self._most else ():
            kept = piece
            if self._size + piece.size > self._most:
                kept = replace(piece, rows=0, arrays={}, lacks=AttachmentLack.TOO_LARGE)
            self._size += kept.size
            self._pieces.append(kept)

    def fields(self, samples: Sequence[Sample]) -> tuple[dict[str, Any], list[str]]:
        """Says what there is of a result's turns; nothing where nothing was sampled."""
        sampled: dict[int, int] = {}
        for sample in samples:
            for segment in sample.segments:
                if segment.kind == "sampled" and segment.turn >= self._begins:
                    sampled[segment.turn] = sampled.get(segment.turn, 0) + segment.n
        if not sampled:
            return {}, []
        missing = {}
        for kind in self._kinds:
            have = dict.fromkeys(sampled, 0)
            for piece in self._pieces:
                if piece.kind is kind and piece.lacks is None and piece.turn in have:
                    have[piece.turn] += piece.n
            missing[kind] = sum(have[turn] != n for turn, n in sampled.items())
        report = AttachmentsReport(bytes=self._size, missing=missing)
        return {"attachments": report}, ["attachments_missing"] if any(missing.values()) else []

    def record(self) -> bytes:
        """Returns them as they are stored; empty where there are none."""
        return write_pieces(self._pieces) if self._pieces else b""
