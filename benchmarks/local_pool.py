"""A pool for the benchmarks of single parts: as it is shipped (`appendfsync always`, on disk), but without Flower."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from benchmarks.processes import ENVIRONMENT, ROOT

from rolloutpool_common.rendering import TINY
from rolloutpool_trainer import LocalPool


@contextmanager
def local_pool(
    workers: int, env: Mapping[str, str] | None = None, *, tokenizer: str = TINY, door: bool = False
) -> Iterator[LocalPool]:
    """Runs a pool while the block runs; its workers have this tokenizer."""
    (ROOT / "build").mkdir(exist_ok=True)
    # Plug-ins of a benchmark are modules beside it.
    settings = {**ENVIRONMENT, "PYTHONPATH": str(ROOT), "ROLLOUTPOOL_LOG_LEVEL": "warning", **(env or {})}
    with (
        TemporaryDirectory(dir=ROOT / "build", prefix="bench-state-") as state,
        LocalPool(workers, flower=False, state=state, tokenizers=[tokenizer], door=door, env=settings) as pool,
    ):
        yield pool
