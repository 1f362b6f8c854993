"""A short seed of `make chaos`: real processes, killed and cut off while they work; nothing lost, nothing twice."""

import asyncio
import sys
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest
from tests.chaos.campaign import Campaign, run
from tests.chaos.grades import wrong_grades
from tests.chaos.items import SHARES
from tests.chaos.manners import Manner
from tests.chaos.record import Record
from tests.chaos.verdict import Verdict, judge, truth

Entry = dict[str, Any]

# Slower than processes start: a rollout whose workers die again and again before it gets anywhere runs alone, one at a
# time, and a hundred of those take minutes.
CAMPAIGN = Campaign(
    rollouts=80,
    kills=4,
    seed=11,
    long_faults=False,
    # A deaf port holds its rollouts for a minute.
    shares={manner: share for manner, share in SHARES.items() if manner is not Manner.DEAF},
    in_flight=60,
    latency=0.6,
    gap=(2.0, 4.0),
    kill_share=0.6,
)


@pytest.mark.timeout(400)
@pytest.mark.slow
async def test_a_short_campaign_breaks_no_promise(tmp_path: Path) -> None:
    await run(CAMPAIGN, tmp_path)
    # In a process of its own, which has the tools of a worker and none that other tests' plug-ins brought.
    command = [sys.executable, "-m", "tests.chaos", "--judge", f"{tmp_path}", "--replay"]
    judging = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    table = (await judging.communicate())[0].decode()
    print(table)
    assert judging.returncode == 0, table
    verdict = judge(tmp_path)
    replayed = orjson.loads((tmp_path / "verdict.json").read_bytes())["replayed"]
    assert verdict.submitted == CAMPAIGN.rollouts
    # The campaign was one: a worker died with work in its hands, and the work went on elsewhere.
    assert verdict.kills_that_hit["worker"] > 0, table
    assert verdict.resumed > 0, table
    assert verdict.graded > 10, table
    assert verdict.sessions.played > 5, table
    assert verdict.engine_samples > 0, table
    assert replayed == verdict.completed, table


class TestVerdict:
    """The judge convicts: a campaign that broke a promise would not pass."""

    TURNS: ClassVar[tuple[Entry, ...]] = (
        {"turn": 1, "prompt": [1, 2], "ids": [3, 4], "logprobs": [-0.1, -0.2]},
        {"turn": 2, "prompt": [1, 2, 3, 4, 5], "ids": [6], "logprobs": [-0.3]},
    )
    SAMPLE: ClassVar[Entry] = {
        "prompt_ids": [1, 2],
        "response_ids": [3, 4, 5, 6],
        "response_mask": [1, 1, 0, 1],
        "response_logprobs": [-0.1, -0.2, 0.0, -0.3],
    }
    RESULT: ClassVar[Entry] = {
        "status": "completed",
        "attempt": 1,
        "num_llm_calls": 2,
        "failure": None,
        "samples": [SAMPLE],
    }

    def judged(self, folder: Path, *, asks: list[Entry], client: list[Entry], manner: str = "steady") -> Verdict:
        trainer, log = Record(folder / "trainer-0.jsonl"), Record(folder / "client.jsonl")
        Record(folder / "campaign.jsonl")
        log.write("accepted", key="k", batch="b", rollouts=["b-0"], manners=[manner], pushed=False)
        for turn in asks:
            trainer.write("ask", uid="b-0", turn=turn["turn"], attempt=1, port=1)
            trainer.write("sampled", uid="b-0", attempt=1, **turn)
        for fields in client:
            log.write(fields.pop("event", "result"), uid="b-0", **fields)
        return judge(folder)

    def test_a_calm_rollout_is_clean(self, tmp_path: Path) -> None:
        verdict = self.judged(tmp_path, asks=[*self.TURNS], client=[{"result": self.RESULT}])
        assert verdict.clean
        assert (verdict.submitted, verdict.completed) == (1, 1)

    def test_what_never_came_is_lost(self, tmp_path: Path) -> None:
        assert self.judged(tmp_path, asks=[*self.TURNS], client=[]).lost == ["b-0"]

    def test_what_failed_at_an_honest_trainer_is_lost(self, tmp_path: Path) -> None:
        failed = {**self.RESULT, "status": "failed", "failure": {"category": "poison", "message": "why"}, "samples": []}
        verdict = self.judged(tmp_path, asks=[*self.TURNS], client=[{"result": failed}])
        assert verdict.lost == ["b-0 (steady: poison: why)"]

    def test_what_came_at_two_cursors_was_delivered_twice(self, tmp_path: Path) -> None:
        verdict = self.judged(tmp_path, asks=[*self.TURNS], client=[{"result": self.RESULT}, {"result": self.RESULT}])
        assert verdict.delivered_twice == ["b-0"]

    def test_two_contents_are_two_deliveries(self, tmp_path: Path) -> None:
        pushed = {"event": "push", "id": "b-0", "result": {**self.RESULT, "attempt": 2}}
        verdict = self.judged(tmp_path, asks=[*self.TURNS], client=[{"result": self.RESULT}, pushed])
        assert verdict.delivered_twice == ["b-0"]

    def test_what_is_read_again_because_redis_was_started_again_is_none(self, tmp_path: Path) -> None:
        again = {"event": "again", "result": self.RESULT}
        assert self.judged(tmp_path, asks=[*self.TURNS], client=[{"result": self.RESULT}, again]).clean

    def test_what_is_read_again_and_is_something_else_is_a_second_delivery(self, tmp_path: Path) -> None:
        again = {"event": "again", "result": {**self.RESULT, "attempt": 2}}
        verdict = self.judged(tmp_path, asks=[*self.TURNS], client=[{"result": self.RESULT}, again])
        assert verdict.delivered_twice == ["b-0"]

    def test_a_repeated_push_is_none(self, tmp_path: Path) -> None:
        pushes = [{"event": "push", "id": "b-0", "result": self.RESULT} for _ in range(2)]
        verdict = self.judged(tmp_path, asks=[*self.TURNS], client=[{"result": self.RESULT}, *pushes])
        assert verdict.clean
        assert verdict.pushed_again == 1

    def test_a_turn_that_was_sampled_again_shows(self, tmp_path: Path) -> None:
        verdict = self.judged(tmp_path, asks=[*self.TURNS, self.TURNS[0]], client=[{"result": self.RESULT}])
        assert verdict.sampled_twice == ["b-0/1"]

    def test_a_trainer_that_forgot_a_turn_may_sample_it_again(self, tmp_path: Path) -> None:
        asks = [*self.TURNS, self.TURNS[0]]
        verdict = self.judged(tmp_path, asks=asks, client=[{"result": self.RESULT}], manner="forgetful")
        assert verdict.clean
        assert verdict.sampled_after_loss == 1

    @pytest.mark.parametrize("name", list(SAMPLE))
    def test_one_wrong_value_is_a_wrong_mask(self, tmp_path: Path, name: str) -> None:
        wrong = {**self.SAMPLE, name: [*self.SAMPLE[name][:-1], 0]}
        verdict = self.judged(tmp_path, asks=[*self.TURNS], client=[{"result": {**self.RESULT, "samples": [wrong]}}])
        assert verdict.wrong_masks == ["b-0"]

    def test_a_history_that_was_rendered_anew_begins_a_sample(self) -> None:
        first, second = self.TURNS
        turns = [first, {**second, "prompt": [1, 2, 9, 5]}]
        assert [sample["prompt_ids"] for sample in truth(turns)] == [[1, 2], [1, 2, 9, 5]]

    GRADED: ClassVar[Entry] = {"reward": 29.0, "reward_parts": {}, "token_rewards": None, "grade": {"grader": "moody"}}

    def graded(self, **changes: Any) -> list[str]:
        sampled = {"b-0": {turn["turn"]: turn for turn in self.TURNS}}
        result = {**self.RESULT, **self.GRADED, **changes}
        return list(wrong_grades({"b-0": ("moody", None)}, {"b-0": result}, sampled))

    def test_the_right_grade_is_clean(self) -> None:
        # 1 * 3 + 2 * 4 + 3 * 6
        assert self.graded(reward=29.0) == []

    @pytest.mark.parametrize(
        "changes",
        [
            {"reward": 28.0},
            {"reward": None},
            {"grade": None},
            {"grade": {"grader": "digest"}},
            {"status": "failed", "reward": 0.0},
            {"status": "failed", "reward": None, "token_rewards": [[0.0]]},
        ],
        ids=str,
    )
    def test_every_other_one_is_wrong_and_a_failure_is_never_a_number(self, changes: Entry) -> None:
        assert len(self.graded(**{"reward": 29.0, **changes})) == 1

    def test_a_group_has_the_grades_of_one_call(self) -> None:
        graders = {f"b-{index}": ("places", "b g") for index in range(3)}
        grade = {"grade": {"grader": "places"}, "token_rewards": None}
        results = {
            f"b-{index}": {**self.RESULT, **grade, "reward": float(place), "reward_parts": {"members": 2}}
            for place, index in enumerate((0, 2))
        }
        results["b-1"] = {**self.RESULT, **grade, "status": "failed", "reward": None, "reward_parts": {}}
        assert list(wrong_grades(graders, results, {})) == []
        results["b-2"]["reward_parts"] = {"members": 1}
        assert len(list(wrong_grades(graders, results, {}))) == 1
