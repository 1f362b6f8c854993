"""The inside of a child: where it finds its tool, and that it ends with its worker, even by kill -9."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import tools
from tests.support.processes import runs
from tests.support.waiting import eventually

from rolloutpool_worker.tools import calculator
from rolloutpool_worker.tools.child import ToolAddress

ROOT = Path(__file__).parents[4]

WORKER = """
import asyncio, sys
from pathlib import Path
from tests.support import tools
from rolloutpool_worker.tools import IsolatedTools, ToolContext
async def work():
    call = IsolatedTools(1).call(
        tools.isolated_tool(tools.note), ToolContext("b-0", "r", 1, "c", {}), {"file": sys.argv[1]}, seconds=60.0,
        result_bytes=10
    )
    await call
if __name__ == "__main__":
    asyncio.run(work())
"""


class Folder:
    """Stands for a class of a plug-in's module."""

    @staticmethod
    async def inside(_: object) -> str:
        return "inside"


@pytest.mark.parametrize(
    ("module", "name", "found"),
    [
        (tools.__name__, "say", tools.say),
        # Here the decorator has put a tool in the place of the function.
        (calculator.__name__, "add", calculator.ADD.run),
        (__name__, "Folder.inside", Folder.inside),
    ],
)
def test_a_tool_is_found_by_its_function_s_names(module: str, name: str, found: object) -> None:
    sys.modules.setdefault(__name__, sys.modules[Folder.__module__])
    assert ToolAddress(module, name).load() is found


def test_children_end_with_their_worker(tmp_path: Path) -> None:
    program, file = tmp_path / "worker.py", tmp_path / "pids"
    program.write_text(WORKER)
    with subprocess.Popen([sys.executable, str(program), str(file)], env={"PYTHONPATH": str(ROOT)}) as worker:
        eventually(lambda: file.exists() and file.read_text().endswith("\n"), seconds=60)
        child, helper = file.read_text().split()
        worker.kill()
    eventually(lambda: not runs(int(child)))
    # What the tool itself has started is not the kernel's to know.
    subprocess.run(["kill", helper], check=True)
