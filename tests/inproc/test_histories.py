"""A slice of the histories, and that clock, kills and judges do what the histories rely on."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.inproc.clock import Clock, PoolLoop, Process, Stalled
from tests.inproc.judge import TokenJudge
from tests.inproc.trainer import Sampled

from rolloutpool_common.testing import TINY_TOKENIZER

ROOT = Path(__file__).parents[2]
SECONDS = 12.0
END = "<|im_end|>"


@pytest.fixture
def loop() -> Iterator[PoolLoop]:
    with closing(PoolLoop(Clock())) as made:
        yield made


def test_histories_from_the_first_seed_on_have_no_fault() -> None:
    """In a process of its own, because its time is not pytest's."""
    command = [sys.executable, "-m", "tests.inproc", "--seconds", str(SECONDS)]
    played = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert played.returncode == 0, played.stdout[-3000:] + played.stderr[-3000:]
    assert "'completed': " in played.stdout


@pytest.mark.slow
def test_100_deaths_between_claim_and_first_call_leave_no_doubt() -> None:
    command = [sys.executable, "-m", "tests.inproc.first_calls"]
    played = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert played.returncode == 0, played.stdout[-3000:] + played.stderr[-3000:]


def test_an_hour_passes_at_once(loop: PoolLoop) -> None:
    before = loop.time()
    loop.run_until_complete(asyncio.sleep(3600))
    assert loop.time() - before == pytest.approx(3600)


def test_what_can_never_happen_is_not_waited_for(loop: PoolLoop) -> None:
    with pytest.raises(Stalled):
        loop.run_until_complete(asyncio.Event().wait())


def test_nothing_of_a_killed_process_runs(loop: PoolLoop) -> None:
    ran: list[str] = []
    process = Process("victim", loop)

    async def child() -> None:
        try:
            await asyncio.sleep(1)
            ran.append("after its sleep")
        finally:
            ran.append("its clean-up")

    async def live() -> None:
        ran.append("before")
        await asyncio.create_task(child())

    async def whole() -> None:
        process.spawn(live())
        await asyncio.sleep(0.5)
        process.kill()
        await asyncio.sleep(60)

    loop.run_until_complete(whole())
    assert ran == ["before"]


def test_a_frozen_process_goes_on_later(loop: PoolLoop) -> None:
    process = Process("sleeper", loop)
    woken: list[float] = []

    async def live() -> None:
        await asyncio.sleep(1)
        woken.append(loop.time())

    async def whole() -> None:
        begun = loop.time()
        process.spawn(live())
        await asyncio.sleep(0.5)
        process.freeze(30)
        await asyncio.sleep(60)
        assert woken == [pytest.approx(begun + 30.5)]

    loop.run_until_complete(whole())


class TestTokenJudge:
    """On a conversation of two turns: each fault that is put into the result is seen."""

    judge = TokenJudge(TINY_TOKENIZER, [])
    messages = (
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": "Say 1."},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "It is 2."},
    )

    def notes(self) -> list[Sampled]:
        """What the trainer sampled, by its own account."""
        ids = self.judge.encode
        first = ids("<|im_start|>user\nAdd.<|im_end|>\n<|im_start|>assistant\n")
        said = ids("Say 1." + END)
        glue = ids("\n<|im_start|>tool\n<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
        second, answer = [*first, *said, *glue], ids("It is 2." + END)
        return [
            Sampled("u", 1, 1, tuple(first), tuple(said), (-0.5,) * len(said), "", True),
            Sampled("u", 2, 1, tuple(second), tuple(answer), (-0.25,) * len(answer), "", True),
        ]

    def result(self) -> dict[str, object]:
        """The right one."""
        one, two = self.notes()
        glue = two.prompt[len(one.prompt) + len(one.ids) :]
        sample = {
            "prompt_ids": list(one.prompt),
            "response_ids": [*one.ids, *glue, *two.ids],
            "response_mask": [1] * len(one.ids) + [0] * len(glue) + [1] * len(two.ids),
            "response_logprobs": [-0.5] * len(one.ids) + [0.0] * len(glue) + [-0.25] * len(two.ids),
        }
        return {
            "status": "completed",
            "messages": self.messages,
            "samples": [sample],
            "num_llm_calls": 2,
            "turns": [{}, {}],
        }

    def test_the_right_result_has_no_fault(self) -> None:
        assert self.judge.fault(self.result(), self.notes(), renders=False) is None

    @pytest.mark.parametrize("name", ["prompt_ids", "response_ids", "response_mask", "response_logprobs"])
    @pytest.mark.parametrize("place", [0, 8, -1])
    def test_one_wrong_number_is_a_fault(self, name: str, place: int) -> None:
        result = self.result()
        result["samples"][0][name][place] += 1  # type: ignore[index]
        assert self.judge.fault(result, self.notes(), renders=False) is not None

    @pytest.mark.parametrize("other", [{"num_llm_calls": 1}, {"turns": [{}]}, {"messages": messages[:3]}])
    def test_a_turn_that_is_not_counted_or_told_is_a_fault(self, other: dict[str, object]) -> None:
        assert self.judge.fault(self.result() | other, self.notes(), renders=False) is not None

    def test_a_turn_of_an_attempt_that_was_given_up_is_a_fault(self) -> None:
        one, two = self.notes()
        other = Sampled("u", 1, 2, one.prompt, one.ids[1:], one.logprobs[1:], "", True)
        assert self.judge.fault(self.result(), [other, two], renders=False) is not None

    def test_a_prompt_that_the_template_does_not_write_is_a_fault(self) -> None:
        messages = [*self.messages[:2], {"role": "tool", "content": "3"}, self.messages[3]]
        assert self.judge.fault({**self.result(), "messages": messages}, self.notes(), renders=False) is not None
