"""The example of README.md runs as it stands there, and prints what stands below it."""

import asyncio
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


async def test_the_example_prints_what_the_readme_says() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```\n\n^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    code, printed = found.groups()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code), cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await asyncio.wait_for(process.communicate(), 120)
    assert (process.returncode, out.decode()) == (0, printed), errors.decode()
