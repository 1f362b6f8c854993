"""What every test may rely on: an environment without our settings, and a real Redis of its own.

The environment is cleaned on import, before any test module can read it, and child processes inherit the
cleaned one: no test passes or fails by what a developer has exported. The Redis server is one per pytest
process (so one per xdist worker), bound to loopback, without persistence, and empty when a test starts.
"""

import os
import re
import signal
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from tests.support.redis_server import RedisServer, running_redis
from tests.tokenizers.real import REAL_NAMES, TEMPLATE_NAMES

if TYPE_CHECKING:
    from rolloutpool_common.rendering import ChatTokenizer

# MAKE*: `make test` tells a make that a test starts how it was called itself.
OUR_PREFIXES = ("ROLLOUT", "TOKENIZER_", "CALCULATOR_", "HF_", "CELERY_", "FLOWER_", "MAKE")
OUR_NAMES = frozenset({"MAX_CONCURRENT_ROLLOUTS", "HTTP_CLIENT_TIMEOUT", "MFLAGS"})
# Belong to the test suite, not to the product: CI sets them to turn skips into failures.
KEPT_NAMES = frozenset(
    {
        "ROLLOUTPOOL_ATTACKS",
        "ROLLOUTPOOL_BUILT_IMAGES",
        "ROLLOUTPOOL_REQUIRE_AXE",
        "ROLLOUTPOOL_REQUIRE_BROWSER",
        "ROLLOUTPOOL_REQUIRE_TOKENIZERS",
        "ROLLOUTPOOL_SCREENSHOTS",
        "ROLLOUTPOOL_UNPACK_IMAGES",
    }
)


def clean_environment() -> None:
    """Remove our settings from this process' environment and pin what makes runs differ."""
    for name in list(os.environ):
        if (name.startswith(OUR_PREFIXES) or name in OUR_NAMES) and name not in KEPT_NAMES:
            del os.environ[name]
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def take_interrupts() -> None:
    """Undo what a script's `&` does: programs that it starts, and their children, ignore Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


clean_environment()
take_interrupts()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in tests/acceptance, so that no file there can forget it, and deal the tests in a good order.

    xdist gives each process a run of tests as they stand here. Those of one real tokenizer stand side by side, so the
    other processes need not load it: all of them take 44 s of CPU. Files of acceptance tests stand among the others,
    because they mostly wait for processes that they have started, while the others keep a core busy.
    """
    acceptance = Path(__file__).parent / "acceptance"
    waiting = [item for item in items if item.path.is_relative_to(acceptance)]
    for item in waiting:
        item.add_marker(pytest.mark.acceptance)
    busy = sorted((item for item in items if not item.path.is_relative_to(acceptance)), key=_real_tokenizer)
    files = [list(tests) for _, tests in groupby(waiting, key=lambda item: item.path)]
    items[:] = _spread(files, busy)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why a test failed that passed when it ran once more: a name alone does not say what to mend."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"RERUN {report.nodeid}")
        terminalreporter.line(report.longreprtext)


def _spread(files: list[list[pytest.Item]], among: list[pytest.Item]) -> list[pytest.Item]:
    """Puts files of tests at even distances among other tests, and never into the middle of one of their files."""
    mixed: list[pytest.Item] = []
    left = files[::-1]
    for place, item in enumerate(among):
        due = len(files) - len(left) < len(files) * (place + 1) / len(among)
        if due and left and (place == 0 or among[place - 1].path != item.path):
            mixed += left.pop()
        mixed.append(item)
    return mixed + [item for tests in left[::-1] for item in tests]


def _real_tokenizer(item: pytest.Item) -> tuple[bool, str]:
    """Orders tests by the real tokenizer in their name; those without one come last, in the order of their files."""
    if item.get_closest_marker("real_tokenizer") is None:
        return (True, "")
    named = set(re.split(r"[^\w:]+", item.name.partition("[")[2])) & {*REAL_NAMES, *TEMPLATE_NAMES}
    return (False, min(named, default=""))


@pytest.fixture(scope="session")
def tokenizer() -> "ChatTokenizer":
    """The committed tokenizer, by its path. Ours is imported only here, behind the cleaning of the environment."""
    from rolloutpool_common.rendering import load_tokenizer
    from rolloutpool_common.testing import TINY_TOKENIZER

    return load_tokenizer(str(TINY_TOKENIZER))


@pytest.fixture(scope="session")
def tiny() -> "ChatTokenizer":
    """The same, by its name."""
    from rolloutpool_common.rendering import TINY, load_tokenizer

    return load_tokenizer(TINY)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A real Redis for the whole session. Prefer `redis_url`, which also empties it."""
    with running_redis() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """URL of a real Redis that holds nothing yet: no keys, no scripts."""
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
        client.script_flush()
    return redis_server.url
