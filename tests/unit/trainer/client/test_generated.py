"""The blocking client is generated from the one for asyncio, and is current."""

from pathlib import Path

import pytest
from scripts.generate_sync_client import MODULES, generated


@pytest.mark.parametrize("module", MODULES, ids=lambda path: f"{path.parent.name}-{path.stem}")
class TestModule:
    def test_it_is_what_the_generator_makes(self, module: Path) -> None:
        assert module.read_text() == generated(module), "run `make generate`"

    def test_nothing_asynchronous_is_left_in_it(self, module: Path) -> None:
        text = module.read_text().lower()
        assert not [
            word for word in ("async", "await", "aio_") if word in text.replace(f"`{MODULES[module].name}`", "")
        ]
