"""Writes the blocking client from the one for asyncio: `make generate`; `--check` only says whether it is current.

1. unasync removes `async` and `await` from client/aio.py and replaces the names below.
2. The file gets a header of its own, because what it says about event loops does not hold for threads.
3. ruff sorts the imports, of which two have become the same, and formats the file.
"""

import argparse
import ast
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

__all__ = ["SYNC", "generated"]

CLIENT = Path(__file__).parents[1] / "trainer" / "src" / "rolloutpool_trainer" / "client"
ASYNC = CLIENT / "aio.py"
SYNC = CLIENT / "sync.py"

REPLACED = {
    "AsyncBatch": "Batch",
    "AsyncRolloutClient": "RolloutClient",
    "AsyncClient": "Client",
    "aclose": "close",
    "asyncio": "time",
}
HEADER = '''"""The blocking client of a pool. Generated from `aio.py` by `make generate`; edit that file, not this one.

A client may be shared by threads. What it sends is in `calls`.
"""'''


def generated() -> str:
    """Make the text that client/sync.py must have."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "async" / "sync.py"
        source.parent.mkdir()
        source.write_text(ASYNC.read_text())
        unasync.unasync_files([str(source)], [unasync.Rule("/async/", "/blocking/", REPLACED)])
        text = (Path(folder) / "blocking" / "sync.py").read_text()
    docstring = ast.parse(text).body[0]
    body = "".join(text.splitlines(keepends=True)[docstring.end_lineno :])
    return _ruff(["format", "-"], _ruff(["check", "--fix", "--quiet", "-"], HEADER + "\n" + body))


def _ruff(command: list[str], text: str) -> str:
    """What ruff makes of a text that lies where the client does."""
    line = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(SYNC)]
    return subprocess.run(line, input=text, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Write the file, or with `--check` return 1 if it is not current."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the file is not current")
    text = generated()
    if parser.parse_args().check:
        if SYNC.read_text() != text:
            print(f"{SYNC.name} is not what aio.py generates: run `make generate`", file=sys.stderr)
            return 1
        return 0
    SYNC.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
