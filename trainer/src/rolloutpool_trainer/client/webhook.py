"""Moved to `rolloutpool_trainer.capabilities.webhooks`; its names can be imported from here for a release."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("rolloutpool_trainer.capabilities.webhooks.receiving"), name)
