"""A body in a file in memory, which two processes can read without copying it through a pipe.

It is outside of Python's heap, so its memory is free again as soon as it is closed. On systems without such files
(macOS) it is a file on disk without a name.
"""

import os
import tempfile
from collections.abc import Iterator
from typing import Self

PIECE_BYTES = 256 * 1024
"""What is read or written at once; it takes a tenth of a millisecond."""


class Spool:
    """One body; whoever makes or receives it closes it."""

    def __init__(self, fd: int) -> None:
        """Takes over an open descriptor."""
        self.fd = fd

    @classmethod
    def make(cls) -> Self:
        """Makes an empty one."""
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("rolloutpool-body"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives its memory back, where no other process has it open."""
        os.close(self.fd)

    def write(self, data: bytes) -> None:
        """Adds bytes at the end."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view[:PIECE_BYTES]) :]

    def read(self) -> bytes:
        """Returns all of it."""
        # Into one buffer: joining pieces would take twice the memory. The view of a buffer of this size is not copied.
        with open(self.fd, "rb", buffering=0, closefd=False) as file:
            file.seek(0)
            return file.readall()

    def pieces(self) -> Iterator[bytes]:
        """Returns all of it in pieces of at most `PIECE_BYTES`."""
        at = 0
        while piece := os.pread(self.fd, PIECE_BYTES, at):
            yield piece
            at += len(piece)
