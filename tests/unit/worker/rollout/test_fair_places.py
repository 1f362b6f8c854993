"""Places are few, and owners take turns."""

import asyncio

from rolloutpool_worker.rollout.fair_places import FairPlaces


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_owners_take_turns_and_none_has_more_than_its_share() -> None:
    places, served = FairPlaces(3, 2), list[str]()

    async def want(owner: str) -> None:
        await places.take(owner)
        served.append(owner)

    waiting = [asyncio.create_task(want(owner)) for owner in "aaaaabbc"]
    await settle()
    assert served == ["a", "a", "b"]
    places.give("a")
    await settle()
    # a and b have one place each, and c has none.
    assert served[3:] == ["c"]
    places.give("b")
    await settle()
    assert served[4:] == ["b"]
    for owner in "abc":
        places.give(owner)
        await settle()
    assert served[5:] == ["a", "a"]
    places.give("a")
    await settle()
    assert served[7:] == ["a"]
    await asyncio.gather(*waiting)


async def test_of_owners_that_have_equally_few_each_gets_its_turn() -> None:
    places, served = FairPlaces(1, 1), list[str]()
    await places.take("first")

    async def want(owner: str) -> None:
        await places.take(owner)
        served.append(owner)

    waiting = [asyncio.create_task(want(owner)) for owner in "aaabbc"]
    await settle()
    for _ in waiting:
        places.give(served[-1] if served else "first")
        await settle()
    # Without turns, an owner's whole line comes before all others.
    assert "".join(served) == "abcaba"
    await asyncio.gather(*waiting)


async def test_who_is_cancelled_takes_no_place_with_it() -> None:
    places = FairPlaces(1, 1)
    await places.take("a")
    gone, next_ = (asyncio.create_task(places.take("b")) for _ in range(2))
    await settle()
    # In the very moment in which it is served.
    places.give("a")
    gone.cancel()
    await settle()
    assert gone.cancelled()
    await next_
    places.give("b")
    await asyncio.wait_for(places.take("a"), 1)
