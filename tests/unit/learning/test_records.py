"""A run is kept whole or not at all, is not made twice, and several make a mean with an honest interval."""

import math
from pathlib import Path

import pytest
from examples.learning.arms import ARMS
from examples.learning.plots import PICTURES, alike, draw, kills_table, table, write_pictures
from examples.learning.records import (
    Run,
    estimate,
    final,
    overall,
    published,
    read_published,
    read_runs,
    smoothed,
    wanted,
)

PAGE = Path(__file__).parents[3] / "docs" / "learning"


def made(arm: str, seed: int, level: float, **settings: bool) -> Run:
    run = Run(arm, seed, {"steps": 20, **settings})
    for step in range(20):
        solved = min(level, 0.3 + step * 0.05)
        tokens = {"trained": 100, "sampled": 97, "foreign": 5, "missed": 2, "compared": 97}
        run.add({"solved": solved, "calls": 2.0, "lost": 1, "retried": 0, **tokens})
    run.totals = {"solved after": level, "seconds": 60.0}
    return run


def test_a_run_that_ended_is_not_made_again(tmp_path: Path) -> None:
    run = made("exact", 1, 0.9)
    assert wanted(run, tmp_path)
    run.write(tmp_path)
    assert not wanted(Run("exact", 1, {"steps": 20}), tmp_path)
    assert wanted(Run("exact", 2, {"steps": 20}), tmp_path)
    assert wanted(Run("exact", 1, {"steps": 40}), tmp_path)
    assert wanted(Run("exact", 1, {"steps": 20, "kill": True}), tmp_path)


def test_a_write_that_was_cut_off_leaves_no_run(tmp_path: Path) -> None:
    (tmp_path / "exact-1.json.part").write_text('{"arm": "exa')
    assert read_runs(tmp_path) == []
    assert wanted(Run("exact", 1, {}), tmp_path)


def test_what_is_published_can_be_read() -> None:
    runs = [made("exact", 1, 0.9), made("ones", 1, 0.8)]
    text = published(runs)
    assert len(text.splitlines()) == 4


def test_published_runs_come_back(tmp_path: Path) -> None:
    runs = [made("exact", 1, 0.9), made("ones", 1, 0.8)]
    (tmp_path / "runs.json").write_text(published(runs))
    assert read_published(tmp_path / "runs.json") == runs


def test_the_interval_is_students() -> None:
    found = estimate([0.8, 0.9, 1.0])
    assert found.mean == pytest.approx(0.9)
    # 4.303 times 0.1 over the root of 3.
    assert found.half == pytest.approx(0.24843, abs=1e-4)
    assert str(found) == "0.90 ± 0.25"
    assert math.isinf(estimate([0.8]).half)
    assert str(estimate([0.8])) == "0.80"


def test_a_result_is_of_after_the_run_and_not_of_its_steps() -> None:
    run = made("exact", 1, 1.0)
    assert final(run) == 1.0
    assert overall(run) == pytest.approx(sum(min(1.0, 0.3 + step * 0.05) for step in range(20)) / 20)


def test_a_run_with_kills_is_compared_with_the_one_without() -> None:
    quiet, killed = made("exact", 1, 0.9), made("exact", 1, 0.9, kill=True)
    assert kills_table([quiet, made("ones", 1, 0.5)]) == ""
    killed.kills = ["redis at step 3"]
    assert kills_table([killed]) == ""
    assert alike(killed, quiet) == 20
    killed.steps["retried"][3] = 7
    # One token more is another step, though as much was solved.
    killed.steps["sampled"][4] += 1
    killed.totals["seconds"] = 75.0
    assert alike(killed, quiet) == 19
    (row,) = kills_table([quiet, killed]).splitlines()[2:]
    assert row == "| `exact`, seed 1 | redis at step 3 | 7 | 19 of 20 | 0.900, 0.900 | 75, 60 |"


def test_smoothing_looks_back_only() -> None:
    assert smoothed([0.0, 1.0, 1.0, 1.0], 2) == [0.0, 0.5, 1.0, 1.0]


def test_a_picture_is_the_same_each_time_and_names_its_arms() -> None:
    curves = {"exact": [made("exact", seed, 0.9).steps["solved"] for seed in (1, 2, 3)], "ones": [[0.5] * 20]}
    text = draw("Masks", curves)
    assert text == draw("Masks", curves)
    assert "the pool's mask (3 seeds)" in text
    assert "all ones (1 seed)" in text


def test_pictures_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    written = write_pictures([made("stale", 1, 0.9)], tmp_path)
    assert [path.name for path in written] == ["staleness.svg"]
    assert [path.name for path in write_pictures([made("exact", 1, 0.9)], tmp_path)] == ["masks.svg"]
    assert {arm for _, arms in PICTURES.values() for arm in arms} == set(ARMS)


def test_differences_are_taken_within_a_seed() -> None:
    runs = [made("exact", 1, 0.9), made("exact", 2, 0.7), made("ones", 1, 0.8), made("ones", 2, 0.6)]
    killed = made("exact", 3, 0.1, kill=True)
    killed.kills = ["redis at step 3"]
    head, _, exact, ones = table([*runs, killed]).splitlines()
    cells = [cell.strip() for cell in ones.split("|")]
    assert cells[1:4] == ["`ones`: all ones", "2", f"{estimate([final(run) for run in runs[2:]])}"]
    # Both differ by nearly the same, however far the seeds are apart.
    pairs = [final(runs[2]) - final(runs[0]), final(runs[3]) - final(runs[1])]
    assert cells[4] == str(estimate(pairs))
    assert exact.split("|")[4].strip() == ""
    assert head.count("|") == ones.count("|")


@pytest.mark.skipif(not (PAGE / "runs.json").exists(), reason="nothing is published")
def test_the_page_shows_what_was_run(tmp_path: Path) -> None:
    runs = read_published(PAGE / "runs.json")
    page = (PAGE.parent / "learning.md").read_text()
    assert table(runs) in page
    assert kills_table(runs) in page
    assert all(sum(run.steps["compared"]) == sum(run.steps["sampled"]) for run in runs)
    assert max(run.totals["difference"] for run in runs) <= 1e-4
    drawn = {path.name: path.read_text() for path in write_pictures(runs, tmp_path)}
    assert drawn == {path.name: path.read_text() for path in PAGE.glob("*.svg")}
    assert all(f"](learning/{name})" in page for name in drawn)
