"""One pool of real processes for the whole tier: Redis, API, two workers, Flower, as `rolloutpool up` starts them."""

from collections.abc import Generator, Iterator

import pytest
from playwright.sync_api import Browser
from tests.support.browsers import SharedBrowser
from tests.support.served_policy import ServedPolicy

from rolloutpool_common.rendering import TINY, ChatTokenizer, load_tokenizer
from rolloutpool_trainer import LocalPool, RolloutClient, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

SHARED = SharedBrowser()


@pytest.fixture(scope="session")
def tokenizer() -> ChatTokenizer:
    """The committed tokenizer."""
    return load_tokenizer(TINY)


@pytest.fixture(scope="session")
def pool() -> Iterator[LocalPool]:
    """A running pool."""
    with LocalPool(workers=2, tokenizers=[TINY]) as running:
        yield running


@pytest.fixture
def client(pool: LocalPool) -> Iterator[RolloutClient]:
    """A client of the pool."""
    with pool.client() as open_client:
        yield open_client


@pytest.fixture
def trainer(pool: LocalPool, tokenizer: ChatTokenizer) -> Iterator[ServedPolicy]:
    """A strict trainer on four ports that renders the pool's own tools into its prompts."""
    app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, tools=pool.url)
    with serve_callback(app, [0, 0, 0, 0]) as served:
        yield ServedPolicy(app, list(served.urls))


@pytest.fixture
def browser() -> Browser:
    """Chromium, the same one for all tests in a row that need it."""
    return SHARED.get()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Ends the browser where the next test needs none, after the fixtures of this one are gone."""
    try:
        return (yield)
    finally:
        if "browser" not in getattr(nextitem, "fixturenames", ()):
            SHARED.close()
