"""Whether this machine lets bubblewrap make namespaces (Debian: bubblewrap)."""

import shutil
import subprocess

import pytest


def _can_isolate() -> bool:
    bwrap = shutil.which("bwrap")
    asks = ["--ro-bind", "/", "/", "--unshare-pid", "--unshare-net", "--proc", "/proc", "--", "/bin/true"]
    return bwrap is not None and subprocess.run([bwrap, *asks], check=False, capture_output=True).returncode == 0


needs_bubblewrap = pytest.mark.skipif(not _can_isolate(), reason="needs bubblewrap, and namespaces for it")
