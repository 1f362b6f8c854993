"""Tools: what a policy may call, and how a call becomes a message."""

from rolloutpool_worker.tools.base import TOOLS, Tool, ToolContext, ToolFailed, tool
from rolloutpool_worker.tools.execution import ToolRunner
from rolloutpool_worker.tools.limits import ToolLimits

__all__ = ["TOOLS", "Tool", "ToolContext", "ToolFailed", "ToolLimits", "ToolRunner", "tool"]
