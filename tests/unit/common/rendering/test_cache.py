"""The cache under concurrency; loading itself is replaced by a counted copy of one loaded tokenizer."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache, TokenizerLoadError, TokenizerNotAllowed
from rolloutpool_common.rendering import cache as cache_module
from rolloutpool_common.testing import TINY_TOKENIZER


class Loads:
    """Counts loads; each waits at the gate, and names that begin with `bad` fail."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self.tokenizer = tokenizer
        self.count: Counter[tuple[str, str | None]] = Counter()
        self.trusted: list[str] = []
        self.threads: set[int] = set()
        self.started = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def __call__(
        self, name: str, revision: str | None = None, *, trust_remote_code: bool = False, **_: Any
    ) -> ChatTokenizer:
        self.count[(name, revision)] += 1
        self.threads.add(threading.get_ident())
        if trust_remote_code:
            self.trusted.append(name)
        self.started.set()
        assert self.gate.wait(10)
        if name.startswith("bad"):
            raise TokenizerLoadError(name, "bad")
        return self.tokenizer


@pytest.fixture
def loads(tiny: ChatTokenizer, monkeypatch: pytest.MonkeyPatch) -> Loads:
    loads = Loads(tiny)
    monkeypatch.setattr(cache_module, "load_tokenizer", loads)
    return loads


def test_one_load_however_many_ask(loads: Loads) -> None:
    cache = TokenizerCache(2)
    loads.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(cache.load, "a") for _ in range(8)]
        assert loads.started.wait(10)
        loads.gate.set()
        assert {id(future.result(10)) for future in asked} == {id(loads.tokenizer)}
    assert loads.count == {("a", None): 1}


def test_everyone_who_waited_hears_of_the_failure(loads: Loads) -> None:
    cache = TokenizerCache(2)
    loads.gate.clear()
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(cache.load, "bad") for _ in range(4)]
        assert loads.started.wait(10)
        loads.gate.set()
        assert all(isinstance(future.exception(10), TokenizerLoadError) for future in asked)
    assert loads.count[("bad", None)] == 1


def test_least_recently_used_goes_first(loads: Loads) -> None:
    cache = TokenizerCache(2)
    for name in ("a", "b", "a", "c", "a", "b"):
        cache.load(name)
    assert loads.count == {("a", None): 1, ("b", None): 2, ("c", None): 1}
    assert len(cache.loaded()) == 2


def test_listing_what_is_loaded_is_no_use_of_it(loads: Loads) -> None:
    cache = TokenizerCache(2)
    for name in ("a", "b", "a"):
        cache.load(name)
    assert len(cache.loaded()) == 2
    cache.load("c")
    cache.load("a")
    assert loads.count[("a", None)] == 1


def test_a_failure_is_remembered_for_a_short_time(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("rolloutpool_common.rendering.cache.time.monotonic", lambda: now)
    cache = TokenizerCache(1)
    for _ in range(3):
        with pytest.raises(TokenizerLoadError, match="bad"):
            cache.load("bad")
    assert loads.count[("bad", None)] == 1
    now += 60
    with pytest.raises(TokenizerLoadError):
        cache.load("bad")
    assert loads.count[("bad", None)] == 2


def test_a_path_is_refused_alike_whether_it_exists_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    cache = TokenizerCache(1, paths=[str(TINY_TOKENIZER), "Qwen/Qwen3-8B@main"])
    said = set()
    for name in ("/etc", "/not/there", "./there", "./not", "~", "..", "there/../there", "a/b/c", "\\\\host\\share"):
        with pytest.raises(TokenizerNotAllowed) as refused:
            cache.load(name)
        said.add(refused.value.reason)
    assert len(said) == 1
    assert cache.load(str(TINY_TOKENIZER)).vocab_size == cache.load("rolloutpool/tiny").vocab_size


async def test_only_allowed_names_are_loaded(loads: Loads) -> None:
    cache = TokenizerCache(1, allow=["Qwen/*", "rolloutpool/tiny"])
    cache.load("Qwen/Qwen3-8B")
    with pytest.raises(TokenizerNotAllowed, match="Qwen/"):
        await cache.get("evil/Qwen")
    assert list(loads.count) == [("Qwen/Qwen3-8B", None)]


def test_only_listed_names_may_run_their_own_code(loads: Loads) -> None:
    cache = TokenizerCache(2, trust_remote_code_for=["a"])
    cache.warm(["a", "b"])
    assert loads.trusted == ["a"]


def test_a_name_to_warm_may_say_its_revision(loads: Loads) -> None:
    cache = TokenizerCache(4, allow=["a", "org/b"])
    cache.warm(["a@main", "org/b@refs/pr/1", "a"])
    assert loads.count == {("a", "main"): 1, ("org/b", "refs/pr/1"): 1, ("a", None): 1}
    assert cache.load("a", "main") is loads.tokenizer
    assert loads.count[("a", "main")] == 1


def test_the_path_of_a_directory_may_contain_an_at_sign(
    loads: Loads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy@v2").mkdir()
    monkeypatch.chdir(tmp_path)
    paths = [str(tmp_path / "copy@v2"), "./missing@v3", "copy@v2"]
    TokenizerCache(4).warm(paths)
    assert loads.count == {(path, None): 1 for path in paths}


def test_a_name_to_warm_cannot_end_before_its_revision(loads: Loads) -> None:
    with pytest.raises(TokenizerLoadError, match="a revision must follow"):
        TokenizerCache(1).warm(["a@"])
    assert not loads.count


def test_a_cache_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        TokenizerCache(0)
