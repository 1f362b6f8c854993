"""Moved to `rolloutpool_common.capabilities.engines`; its names can be imported from here for a release."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    home = "wire" if name in ("AttachmentKind", "AttachmentsReport") else "attachments"
    return getattr(importlib.import_module(f"rolloutpool_common.capabilities.engines.{home}"), name)
