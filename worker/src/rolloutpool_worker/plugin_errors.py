"""An error of a user's code: what a failure says of it, and its traceback in the log.

1. `PluginError.of` takes the error's type, its message as far as it is short, and where in the user's code it happened:
   the innermost frame that is neither ours nor of an installed library.
2. It is text alone, so it comes from a child process as it is.
3. `str()` of it is for failures: `KeyError: 'answer' (guessing.py:34 in quick)`.
4. `log` writes its traceback, once per plug-in, type, place and minute. A traceback shows no values of variables.

For example, a tool with a bug is called 10,000 times in an hour: that makes 60 lines, and each says how many it stands
for.
"""

import logging
import sys
import sysconfig
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import rolloutpool_common
from rolloutpool_common.process.logs import log_event

_log = logging.getLogger(__name__)

LONGEST_MESSAGE = 500
"""Characters of an error's message; it is the user's own text, and may quote anything."""
LONGEST_NAME = 64
LONGEST_LINE = 1000
LONGEST_TRACEBACK = 16_000
MOST_FRAMES = 40
MOST_CAUSES = 8
REPEAT_SECONDS = 60.0
"""Between two tracebacks of the same error."""
MOST_LOGGED = 1000
"""Errors that are remembered; an error may be raised at any number of lines."""

_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple(f"{_PATHS[name]}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_OURS = tuple(f"{Path(str(file)).parent}/" for file in (__file__, rolloutpool_common.__file__))

_logged: dict[tuple[str, str, str], tuple[float, int]] = {}
"""By plug-in, type and place: when the traceback was written last, and how many there were since."""


@dataclass(frozen=True)
class PluginError:
    """Holds what is known of an error that a plug-in raised."""

    type: str
    """The name of its class, as a module has it: a class that code of a policy has made is named as its base."""
    message: str
    place: str
    """`guessing.py:34 in quick`; empty where the error was never raised."""
    traceback: str = field(default="", repr=False)

    @classmethod
    def of(cls, error: BaseException) -> "PluginError":
        """Describes an error; of a group, the first one in it."""
        cause = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        return cls(
            _name_of(type(cause)),
            _message_of(cause),
            _place_of(cause) or _place_of(error),
            _traceback_of(error),
        )

    def __str__(self) -> str:
        """Says type, message and place in a line."""
        said = f"{self.type}: {self.message}" if self.message else self.type
        return f"{said} ({self.place})" if self.place else said

    def log(self, plugin: str) -> None:
        """Writes the traceback, unless the same was written within the last minute."""
        key, now = (plugin, self.type, self.place), time.monotonic()
        at, unlogged = _logged.get(key, (-REPEAT_SECONDS, 0))
        if now - at < REPEAT_SECONDS:
            _logged[key] = at, unlogged + 1
            return
        if len(_logged) >= MOST_LOGGED:
            _logged.clear()
        _logged[key] = now, 0
        log_event(
            _log,
            logging.WARNING,
            "plug-in failed",
            plugin=plugin,
            error=self.type,
            place=self.place,
            unlogged=unlogged,
            exception=self.traceback,
        )


def _name_of(kind: type[BaseException]) -> str:
    # It becomes the name of a counter, so a policy must not be able to make any number of them.
    for one in kind.__mro__:
        found: object = sys.modules.get(one.__module__)
        for part in one.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is one:
            return one.__name__[:LONGEST_NAME]
    return "BaseException"


def _place_of(error: BaseException) -> str:
    """Names the innermost frame of the user's, or else the first one that is not ours."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return ""
    files = [frame.f_code.co_filename for frame, _ in frames]
    # An installed plug-in lies where libraries do. What a policy wrote has no file: `<string>`.
    users = [at for at, file in enumerate(files) if not file.startswith((*_OURS, *_LIBRARIES, "<"))]
    others = [at for at, file in enumerate(files) if not file.startswith((*_OURS, _LIBRARIES[0] + "asyncio/", "<"))]
    frame, line = frames[users[-1] if users else others[0] if others else -1]
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{line} in {code.co_name[:LONGEST_NAME]}"


def _traceback_of(error: BaseException) -> str:
    """Writes the frames of an error and of those that caused it, the first cause last."""
    # Not by `TracebackException`, which makes all of a group's errors, and theirs, before it writes the first line.
    written: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(written) < MOST_CAUSES:
        frames = traceback.extract_tb(cause.__traceback__, limit=-MOST_FRAMES)
        lines = [_cut(line, LONGEST_LINE) for line in traceback.format_list(frames)]
        written.append("".join([*lines, f"{_name_of(type(cause))}: {_message_of(cause)}"]))
        inner = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else None
        cause = inner or cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return _cut("\n\ncaused by\n".join(written), LONGEST_TRACEBACK)


def _message_of(error: BaseException) -> str:
    try:
        return _cut(str(error), LONGEST_MESSAGE)
    except Exception:
        return "its text could not be made"


def _cut(text: str, most: int) -> str:
    # Half of a surrogate pair is a string to Python, but it cannot be written as UTF-8.
    shown = text[:most].encode("utf-8", "backslashreplace").decode()
    return shown if len(text) <= most else f"{shown}…"
