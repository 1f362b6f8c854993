"""`python -m rolloutpool_worker.replay [TOKENIZER]`: reads results, one JSON document a line, and replays each.

It writes a `ReplayReport` for each of them to standard output, one a line, as soon as it is there. `rolloutpool replay`
starts it, because a trainer's package does not import the worker. A line that is no result gets a report that says so.
"""

import asyncio
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from pydantic import ValidationError

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.process.settings import SettingsInvalid, refuse_start
from rolloutpool_common.protocol.replay import ReplayReport
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from rolloutpool_common.rendering import TokenizerCache


def main() -> None:
    """Replays what comes on standard input."""
    try:
        # A worker needs its Redis; nothing here does.
        os.environ.setdefault("ROLLOUTPOOL_REDIS_URL", "redis://127.0.0.1")
        settings = WorkerSettings.from_environment()
    except SettingsInvalid as error:
        sys.exit(refuse_start("replay", error))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # These import transformers, which takes a second or two, so wrong settings are reported before.
    from rolloutpool_worker.queue.app import load_plugins

    try:
        load_plugins(settings)
    except RolloutPoolError as error:
        sys.exit(refuse_start("replay", error))
    from rolloutpool_common.rendering import TokenizerCache

    tokenizers = TokenizerCache(
        settings.tokenizer_cache_size,
        trust_remote_code_for=settings.trust_remote_code_for if settings.tokenizer_trust_remote_code else (),
        render_seconds=settings.template_cpu_seconds,
    )
    asyncio.run(replay_lines(sys.stdin, sys.stdout, tokenizers, sys.argv[1] if len(sys.argv) > 1 else None))


async def replay_lines(
    lines: Iterable[str], output: TextIO, tokenizers: "TokenizerCache", tokenizer: str | None = None
) -> None:
    """Replays results."""
    from rolloutpool_worker.replay.run import Replayer

    replayer = Replayer(tokenizers)
    for line in lines:
        if line.strip():
            try:
                report = await replayer.run(RolloutResult.model_validate_json(line), tokenizer)
            except ValidationError as error:
                fields = sorted({".".join(map(str, fault["loc"])) for fault in error.errors(include_input=False)})
                report = ReplayReport(uid="", same=False, lacks=f"it is no result: {', '.join(fields)[:300]}")
            print(report.model_dump_json(), file=output, flush=True)


if __name__ == "__main__":
    main()
