"""A reader that gets nothing says why, after ten seconds and then each minute; not for what is no fault."""

import logging

import pytest
from tests.support.api_documents import status

from rolloutpool_common.protocol.batch import BatchStatus
from rolloutpool_trainer.client.silence import AGAIN_SECONDS, SILENT_SECONDS, Silence

BROKEN = "turn 1 at http://trainer:1: the trainer answered 500: the policy failed with ValueError"


def test_it_is_due_after_some_silence_and_each_minute_from_then_on() -> None:
    now = 0.0
    silence = Silence(lambda: now)
    now = SILENT_SECONDS - 1
    assert not silence.is_due(heard=True)
    now += SILENT_SECONDS - 1
    assert not silence.is_due(heard=False)
    now += 1
    assert silence.is_due(heard=False)
    assert not silence.is_due(heard=False)
    now += AGAIN_SECONDS
    assert silence.is_due(heard=False)


@pytest.mark.parametrize(
    ("waiting", "told"),
    [
        ({"waits_for": "trainer", "status": 500, "tries": 3, "message": BROKEN}, True),
        ({"waits_for": "trainer_port", "message": "no connection"}, True),
        ({"waits_for": "worker", "message": "no live worker"}, True),
        ({"waits_for": "trainer", "message": "no answer for more than 15 s"}, False),
        ({"waits_for": "slot", "message": "all slots are taken"}, False),
        ({"waits_for": "paused", "message": "its run is paused"}, False),
    ],
    ids=["policy fails", "port", "worker", "long turn", "slot", "paused"],
)
def test_faults_are_warned_of_and_nothing_else(
    waiting: dict[str, object], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    document = status(state="running", waiting=[{**waiting, "rollouts": 7}])
    with caplog.at_level(logging.WARNING):
        Silence().tell(BatchStatus.model_validate(document))
    expected = [f"batch {document['batch_id']}: 7 rollouts wait: {waiting['message']}"] if told else []
    assert [record.getMessage() for record in caplog.records] == expected
