"""Channels to imitated engines."""

from collections.abc import AsyncIterator

import pytest
from tests.support.engine_channels import Channels


@pytest.fixture
async def channels() -> AsyncIterator[Channels]:
    made = Channels()
    yield made
    await made.client.aclose()
