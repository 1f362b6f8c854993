"""Presets, and what is filled into them."""

from rolloutpool_common.capabilities.harness.wire import PRESETS, HarnessChoice
from rolloutpool_worker.capabilities.harness.presets import HARNESSES, Preset


def test_what_clients_name_is_what_runners_know() -> None:
    assert tuple(HARNESSES.names()) == PRESETS


def test_values_are_put_in_once_and_other_braces_stay() -> None:
    choice = HarnessChoice(command=("a", "{prompt}", "{other}"), env={"K": "{key}"}, files={"f": '{"u": "{url}"}'})
    values = {"prompt": "say {key}", "url": "http://door", "key": "k", "home": "/h"}
    filled = Preset.of(choice).filled(values)
    assert filled == Preset(("a", "say {key}", "{other}"), {"K": "k"}, {"f": '{"u": "http://door"}'})
