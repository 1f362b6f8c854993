"""The public scripted policy, served by the public endpoint: the trainer of the acceptance tests.

It is not the scripted trainer of `tests.support.scripted_trainer`: it calculates for real and is what users get, so
that the acceptance tests run nothing that a user could not run.
"""

from dataclasses import dataclass

from rolloutpool_trainer.endpoint.app import CallbackApp


@dataclass(frozen=True)
class ServedPolicy:
    """A running endpoint. What it sampled and counted itself is the truth that results are compared with."""

    app: CallbackApp
    urls: list[str]
