"""Tools: what a policy may call, and how a call becomes a message.

- `base` says what a tool is and how to add one; `calculator` has the built-in ones.
- `execution` runs the calls of a turn, within the `limits`; `arguments` parses what the policy wrote.
- `isolated` and `child` are the two ends of a call in a child process.
- `watch` finds tools that harm their neighbours.
"""

from rolloutpool_worker.tools.base import TOOLS, Isolated, Tool, ToolContext, ToolFailed, tool
from rolloutpool_worker.tools.execution import ToolHost, ToolRunner
from rolloutpool_worker.tools.isolated import IsolatedTools
from rolloutpool_worker.tools.limits import ToolLimits
from rolloutpool_worker.tools.watch import ToolWatch

__all__ = [
    "TOOLS",
    "Isolated",
    "IsolatedTools",
    "Tool",
    "ToolContext",
    "ToolFailed",
    "ToolHost",
    "ToolLimits",
    "ToolRunner",
    "ToolWatch",
    "tool",
]
