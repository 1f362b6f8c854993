"""Every arm trains through a real pool and does what its name says; kills change nothing but time."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from rolloutpool_common.rendering import ChatTokenizer, load_tokenizer
from rolloutpool_trainer import LocalPool

torch: Any = pytest.importorskip("torch", reason="torch has an environment of its own: make test-learn")

# They import torch.
from examples.learning.arms import ARMS  # noqa: E402
from examples.learning.demonstrations import start  # noqa: E402
from examples.learning.grpo import AGREEMENT, ENDPOINTS, Settings, run  # noqa: E402
from examples.learning.kills import Kills  # noqa: E402
from examples.learning.plots import alike  # noqa: E402
from examples.learning.records import Run  # noqa: E402
from examples.learning.task import Question  # noqa: E402
from examples.learning.transformer import Shape  # noqa: E402
from examples.learning.vocabulary import write_tokenizer  # noqa: E402
from tests.support.neighbouring_ports import free_base_port  # noqa: E402

# Deprecations inside torch are not ours to mend.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]

SETTINGS = Settings(steps=3, groups=3, size=4, tried=8)
DEMONSTRATIONS = 60
"""So few teach the format already, so rollouts have several turns."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return load_tokenizer(str(folder))


@pytest.fixture(scope="module")
def pool(tokenizer: ChatTokenizer) -> Iterator[LocalPool]:
    with LocalPool(workers=2, flower=False, tokenizers=[tokenizer.name]) as started:
        yield started


@pytest.fixture(scope="module")
def train(tokenizer: ChatTokenizer, pool: LocalPool, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Makes runs that all begin with the same weights."""
    shape = Shape(tokenizer.vocab_size, width=64, layers=2)
    folder = tmp_path_factory.mktemp("start")
    first = start(folder, tokenizer, shape, seed=1, steps=DEMONSTRATIONS, advance=lambda: None)

    def toy(question: Question, said: str | None) -> float:
        # So few demonstrations solve nothing, and rewards that are all equal train nothing.
        return float(len(said or "") % 2)

    def train(arm: str, settings: Settings = SETTINGS, *, kill: bool = False, **changed: Any) -> Run:
        model, record = copy.deepcopy(first), Run(arm, 1, {})
        kills = Kills(pool, settings.steps) if kill else None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("examples.learning.grpo.reward", toy)
            run(
                record,
                replace(ARMS[arm], **changed),
                model,
                tokenizer,
                pool,
                settings,
                base_port=free_base_port(ENDPOINTS),
                advance=lambda note: None,
                kills=kills,
            )
        assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), model.parameters(), strict=True))
        return record

    return train


def checked(record: Run) -> dict[str, float]:
    """The sums of a run's steps, of which every sampled token was compared."""
    sums = {name: sum(values) for name, values in record.steps.items()}
    assert sums["compared"] == sums["sampled"] > 0
    assert max(record.steps["difference"]) <= AGREEMENT
    assert 0.0 <= record.totals["solved after"] <= 1.0
    return sums


def test_our_mask_trains_what_was_sampled_and_nothing_else(train: Any) -> None:
    sums = checked(train("exact"))
    assert sums["foreign"] == sums["missed"] == sums["lost"] == sums["age"] == 0
    assert sums["trained"] == sums["sampled"]


@pytest.mark.parametrize("arm", ["lengths", "lengths-recomputed", "shifted"])
def test_a_length_difference_trains_other_tokens(train: Any, arm: str) -> None:
    sums = checked(train(arm))
    assert sums["foreign"] + sums["missed"] > 0


def test_sampled_ids_that_are_joined_train_the_same(train: Any) -> None:
    assert train("concatenated").steps["solved"] == train("exact").steps["solved"]


def test_all_ones_train_what_tools_and_template_wrote(train: Any) -> None:
    sums = checked(train("ones"))
    assert sums["foreign"] > 0
    assert sums["missed"] == 0


def test_lost_rollouts_are_left_out_or_trained_as_failures(train: Any) -> None:
    left_out = checked(train("faults-left-out", fault=0.4))
    zeros = checked(train("faults-zero", fault=0.4))
    assert left_out["lost"] > 0 < zeros["lost"]
    # What was sampled before the failure is trained, too.
    assert zeros["rollouts"] + zeros["lost"] == SETTINGS.steps * SETTINGS.groups * SETTINGS.size


def test_old_samples_are_trained_with_the_weights_of_then_and_dropped_by_their_limit(train: Any) -> None:
    settings = replace(SETTINGS, steps=5)
    old = train("stale", settings)
    limited = train("stale-limit", settings, max_staleness=1)
    checked(old)
    checked(limited)
    assert max(old.steps["age"]) > 1.0 >= max(limited.steps["age"])
    assert limited.totals["dropped stale"] > 0
    assert "dropped stale" not in old.totals


def test_kills_change_nothing_but_time(train: Any) -> None:
    settings = Settings(steps=4, groups=4, size=8, tried=16)
    quiet, killed = train("exact", settings), train("exact", settings, kill=True)
    assert [what.split()[0] for what in sorted(killed.kills)] == ["redis", "redis", "worker", "worker"]
    assert alike(killed, quiet) == settings.steps, (quiet.steps, killed.steps)
    assert killed.totals["solved after"] == quiet.totals["solved after"]
    assert sum(killed.steps["lost"]) == 0
