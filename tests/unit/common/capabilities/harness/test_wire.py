"""What a rollout may ask of a harness."""

import pytest
from pydantic import ValidationError

from rolloutpool_common.capabilities.harness.wire import HarnessChoice


def test_a_command_is_a_list() -> None:
    assert HarnessChoice.model_validate({"command": ["my-agent", "--flag"]}).command == ("my-agent", "--flag")
    with pytest.raises(ValidationError, match="write a list of arguments"):
        HarnessChoice.model_validate({"command": "my-agent --flag"})
