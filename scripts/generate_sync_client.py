"""Writes the blocking client from the one for asyncio: `make generate`; `--check` only says whether it is current.

1. unasync removes `async` and `await` from the modules `aio*` of the client, and from those of capabilities, and
   replaces the names below.
2. Each file gets a header of its own, because what its source says about event loops does not hold for threads.
3. ruff sorts the imports, of which two have become the same, and formats the file.
"""

import argparse
import ast
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

TRAINER = Path(__file__).parents[1] / "trainer" / "src" / "rolloutpool_trainer"
CLIENT, CAPABILITIES = TRAINER / "client", TRAINER / "capabilities"

REPLACED = {
    "AsyncBatch": "Batch",
    "AsyncDoor": "SyncDoor",
    "AsyncRolloutClient": "RolloutClient",
    "AsyncRolloutStream": "RolloutStream",
    "AsyncTrainableGroup": "TrainableGroup",
    "AsyncClient": "Client",
    "aclose": "close",
    "aio": "sync",
    "aio_batch": "sync_batch",
    "call_aio": "call_sync",
    "asyncio": "time",
}
GENERATED = "Generated from `{source}` by `make generate`; edit that file, not this one."
HEADERS = {
    "": f"""The blocking client of a pool. {GENERATED}

A client may be shared by threads. What it sends is in `calls`.
""",
    "_batch": f"A batch and its groups that block. {GENERATED}",
    "_stream": f"""Rollouts ahead of training. {GENERATED}

That file says how a stream works. A stream belongs to one thread.
""",
}
OF_CAPABILITY = f"A part that blocks. {GENERATED}"
MODULES = {
    **{CLIENT / f"sync{part}.py": CLIENT / f"aio{part}.py" for part in HEADERS},
    **{one.with_name(one.name.replace("aio", "sync", 1)): one for one in sorted(CAPABILITIES.glob("*/aio*.py"))},
}
"""The file that is written, and its source."""


def generated(target: Path) -> str:
    """Make the text that a module of the blocking client must have."""
    source = MODULES[target]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "async" / target.name
        copy.parent.mkdir()
        copy.write_text(source.read_text())
        unasync.unasync_files([str(copy)], [unasync.Rule("/async/", "/blocking/", REPLACED)])
        text = (Path(folder) / "blocking" / target.name).read_text()
    docstring = ast.parse(text).body[0]
    body = "".join(text.splitlines(keepends=True)[docstring.end_lineno :])
    form = HEADERS[target.stem.removeprefix("sync")] if target.parent == CLIENT else OF_CAPABILITY
    header = form.format(source=source.name)
    text = f'"""{header}"""\n{body}'
    return _ruff(target, ["format", "-"], _ruff(target, ["check", "--fix", "--quiet", "-"], text))


def _ruff(target: Path, command: list[str], text: str) -> str:
    """What ruff makes of a text that lies where the client does."""
    line = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(target)]
    return subprocess.run(line, input=text, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Write the files, or with `--check` return 1 if one is not current."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a file is not current")
    check = parser.parse_args().check
    stale = []
    for target in MODULES:
        text = generated(target)
        if not check:
            target.write_text(text)
        elif not target.exists() or target.read_text() != text:
            stale.append(target.name)
    if stale:
        print(f"{', '.join(stale)}: not what the sources generate; run `make generate`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
