"""Says what to install where the trainer of an adapter is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from rolloutpool_trainer.errors import MissingExtra


@contextmanager
def needing(requirement: str) -> Iterator[None]:
    """Names what to install, if an import of the block finds no such module.

    Args:
        requirement: The trainer's package, in the version that its adapter was read from: `trl==1.16.0`.

    Raises:
        MissingExtra: A module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(f"this adapter needs {error.name}, which comes with: pip install '{requirement}'") from error
