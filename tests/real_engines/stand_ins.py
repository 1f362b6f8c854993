"""Stands in for packages that SGLang imports and does not call on CPUs, because their builds want CUDA.

`make test-sglang` copies it into SGLang's environment, where each process imports it first.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

NAMES = frozenset({"sgl_kernel", "torchaudio", "torchvision"})


class Missing:
    """Whatever is asked of such a package. It can be passed on, and not be called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> "Missing":
        # Python's own questions get the usual answer.
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self._name}.{name}")

    def __call__(self, *values: object, **named: object) -> Any:
        raise NotImplementedError(f"{self._name} wants CUDA")


class Finder(importlib.abc.Loader):
    """Finds these packages, and all modules in them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Says that there is such a module."""
        if name.partition(".")[0] not in NAMES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Makes a module that has whatever it is asked for."""
        module = types.ModuleType(spec.name)
        # transformers asks for the version, and takes one so old for none.
        vars(module).update(__getattr__=Missing(spec.name).__getattr__, __version__="0.0")
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is in it."""


sys.meta_path.append(Finder())
