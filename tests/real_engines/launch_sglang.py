"""Starts SGLang on a machine without CUDA, which has no way to pin the memory where routed experts are kept.

The processes that SGLang starts import this file first, as each spawned process does with its parent's.
"""

import runpy
from typing import Any

import torch


class Unpinned:
    """Stands in for CUDA's runtime: memory that no GPU reads need not be pinned."""

    def cudaHostRegister(self, *values: int) -> int:
        """Says that all is well."""
        return 0


if not torch.cuda.is_available():
    cuda: Any = torch.cuda
    cuda.cudart = Unpinned

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
