"""Arguments that a policy wrote as JSON text, parsed so that no other rollout waits for it.

The parser in C holds the interpreter's lock for a whole document, also in a thread: 25 ms for 1 MB of small numbers,
and a turn may have 64 such calls. So a long text is parsed in a thread by the standard library's parser in Python,
which gives the lock back every few milliseconds (`json_compat`). What is long in practice are strings, such as files
and programs; they are copied at once, so it takes as long as the other. Many small values take it twenty times as long,
and they alone wait for that: there is one such thread, so long texts follow each other.
"""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rolloutpool_worker.tools.json_compat import FairDecoder

PARSED_ON_LOOP = 16_000
"""Characters of arguments that are parsed, or checked against a schema, at once."""

_THREAD = ThreadPoolExecutor(1, thread_name_prefix="tool-arguments")


async def parse_arguments(text: str) -> Any:
    """Parses the arguments of a call."""
    if len(text) <= PARSED_ON_LOOP:
        return json.loads(text)
    return await asyncio.get_running_loop().run_in_executor(_THREAD, FairDecoder().decode, text)
