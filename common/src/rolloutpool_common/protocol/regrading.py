"""Moved to `rolloutpool_common.capabilities.grading`; its names can be imported from here for a release."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("rolloutpool_common.capabilities.grading.annotating"), name)
