"""Batches that are read later are asked for in time, and not with each page."""

from rolloutpool_trainer.client.lease_renewal import LeaseRenewal


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_all_are_due_several_times_in_a_lease() -> None:
    clock = Clock()
    renewal = LeaseRenewal(40.0, clock)
    renewal.open |= {"b0": None, "b1": None}
    assert renewal.due() == []
    clock.now += 10.0
    assert (renewal.due(), renewal.due()) == (["b0", "b1"], [])
    clock.now += 9.0
    assert renewal.due() == []
    clock.now += 1.0
    assert renewal.due() == ["b0", "b1"]
