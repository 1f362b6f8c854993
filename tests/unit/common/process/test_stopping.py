"""A signal stops a command whatever it is doing."""

import os
import signal

from rolloutpool_common.process.stopping import stop_on_signals


def test_a_signal_in_the_middle_of_a_print_still_stops() -> None:
    def refused() -> None:
        # What Python's streams raise when a handler prints while the program is printing.
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

    went_on = False
    with stop_on_signals(lambda: None, refused):
        os.kill(os.getpid(), signal.SIGTERM)
        went_on = True
    assert not went_on
