"""What becomes of a policy's error: a line in the log, and the answer to the turn.

The pool asks such a turn twenty times, and all rollouts of a batch may fail in the same way. So a traceback is logged
once, and a line whenever there are twice as many errors from the same place.
"""

import logging
from collections import Counter
from typing import Any

from rolloutpool_common.rendering.quotes import without_quotes
from rolloutpool_trainer.endpoint.errors import EndpointError
from rolloutpool_trainer.endpoint.policy import GenerateParams
from rolloutpool_trainer.errors import TurnRefused

logger = logging.getLogger(__name__)

LONGEST_READ = 2000
"""Characters of an error's text in which quotes are looked for."""
LONGEST_TEXT = 200
"""Characters of it in an answer."""
MOST_KINDS = 1000
"""Of errors that are counted; then the counts begin anew."""


class PolicyFailures:
    """The errors of one policy."""

    def __init__(self) -> None:
        """Knows of none yet."""
        self._seen: Counter[tuple[type[Exception], str, int]] = Counter()

    def log(self, error: Exception, params: GenerateParams) -> None:
        """Logs an error, as this module says."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = ("", 0) if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        if len(self._seen) >= MOST_KINDS:
            self._seen.clear()
        self._seen[type(error), *place] += 1
        times = self._seen[type(error), *place]
        if times == 1:
            logger.error("rollout %s, turn %d: the policy failed", params.rollout_id, params.turn, exc_info=error)
        elif times & (times - 1) == 0:
            logger.error("the policy failed %d times with %s, as it is logged above", times, type(error).__name__)


def policy_failed(error: Exception, params: GenerateParams, sampled: str) -> EndpointError:
    """Makes the answer to a turn whose policy has raised an error: its type and its text, as a grader's failure has.

    The text is written by somebody's code and may quote anything. So what it quotes of the messages, or of what was
    sampled, becomes `…`, and 200 characters of the rest are sent. A secret in it can't be known from other text: a
    policy must not put one into its errors.
    """
    said = without_quotes(str(error)[:LONGEST_READ], [*params.messages, {"content": sampled}], "")
    # Half of a surrogate pair is a string to Python, but it cannot be written as UTF-8.
    line = " ".join(said.encode(errors="backslashreplace").decode().split())
    text = line if len(line) <= LONGEST_TEXT else f"{line[:LONGEST_TEXT]}…"
    turn: dict[str, Any] = {"rollout_id": params.rollout_id, "turn": params.turn}
    if isinstance(error, TurnRefused):
        return EndpointError(400, "policy_refused", text, **turn)
    what = f"the policy failed with {type(error).__name__}{text and f': {text}'}"
    return EndpointError(500, "generate_failed", f"{what}; see the trainer's log. Asking again is safe", **turn)
