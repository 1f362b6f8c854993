"""The limit of open files is raised as far as it goes; what is still missing is said."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from rolloutpool_common.process.open_files import allow_open_files
soft, hard, needed = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(allow_open_files(needed))
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("needed", "said"),
    [
        (0, "None"),
        (200, "None"),
        (201, "this process may open 200 files and may need 201: raise the limit (ulimit -n, LimitNOFILE)"),
    ],
)
def test_the_limit_is_raised_as_far_as_it_goes(needed: int, said: str) -> None:
    # In a process of its own, because a hard limit can't be raised again.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "100", "200", str(needed)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [said, "(200, 200)"]
