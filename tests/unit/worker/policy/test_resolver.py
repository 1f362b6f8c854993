"""Where connections may go: hosts that are listed, and names all of whose addresses are."""

import asyncio

import pytest

from rolloutpool_common.errors import TargetRefused
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.policy.resolver import Resolver

GOOD, BAD = "8.8.8.8", "169.254.169.254"


class Names:
    """A name server by script: each question gets the next answer, and the last one again and again."""

    def __init__(self, *answers: list[str] | OSError) -> None:
        self.asked = 0
        self._answers = list(answers)

    async def __call__(self, name: str) -> list[str]:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer


@pytest.mark.parametrize(("host", "port"), [(BAD, 80), ("127.0.0.1", 80), ("other.example", 80)])
async def test_a_host_that_is_not_listed_is_refused_before_any_question(host: str, port: int) -> None:
    names = Names([GOOD])
    with pytest.raises(TargetRefused):
        Resolver(Targets.parse("trainer.example"), names).check(host, port)
    assert names.asked == 0


@pytest.mark.parametrize("port", [0, 65536])
async def test_a_port_that_cannot_exist_is_no_verdict(port: int) -> None:
    with pytest.raises(OverflowError):
        Resolver(Targets.parse("*"), Names([GOOD])).check("trainer.example", port)


async def test_all_addresses_of_a_name_are_returned_for_the_connection() -> None:
    found = await Resolver(Targets.parse("*"), Names([GOOD, "2001:4860:4860::8888"])).resolve("trainer.example", 81)
    assert [(result["host"], result["port"]) for result in found] == [(GOOD, 81), ("2001:4860:4860::8888", 81)]


@pytest.mark.parametrize("answer", [[BAD], [GOOD, BAD], ["fe80::1%lo"], ["no address"]])
async def test_one_bad_address_spoils_the_answer(answer: list[str]) -> None:
    with pytest.raises(TargetRefused, match=r"trainer\.example resolves to an address that may not be called"):
        await Resolver(Targets.parse("*"), Names(answer)).resolve("trainer.example", 80)


async def test_a_name_without_addresses_does_not_resolve() -> None:
    with pytest.raises(OSError, match="has no address"):
        await Resolver(Targets.parse("*"), Names([])).resolve("trainer.example", 80)


async def test_calls_that_come_together_ask_once_and_a_failed_answer_is_asked_for_again() -> None:
    names = Names(OSError(None, "no such name"), [GOOD])
    resolver = Resolver(Targets.parse("*"), names)
    with pytest.raises(OSError, match="no such name"):
        await resolver.resolve("late.example", 80)
    await asyncio.gather(*(resolver.resolve("late.example", 80) for _ in range(20)))
    assert names.asked == 2
    await resolver.close()
