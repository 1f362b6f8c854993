"""A scripted trainer that cannot read the pool's tools says so, and goes on asking."""

import pytest
from tests.support.endpoint_client import TOOLS
from tests.support.stub_pool import Answer, stub_pool

from rolloutpool_common.rendering import TINY, load_tokenizer
from rolloutpool_trainer import callback_app
from rolloutpool_trainer.cli import actors
from rolloutpool_trainer.testing import ScriptedPolicy


def test_each_reason_is_said_once_and_that_it_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(actors, "TOOLS_EVERY_SECONDS", 0.01)
    tokenizer = load_tokenizer(TINY)
    with stub_pool() as pool:
        none_yet = Answer(503, {"detail": "no worker yet"})
        pool.on("GET", "/tools", Answer(drop=True), none_yet, none_yet, Answer(200, {"tools": TOOLS}))
        actors.read_tools(callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, tools=pool.url))
        assert len(pool.requests) == 4
        said = capsys.readouterr().err
    assert said.count(pool.url) == said.count("Turns are refused until then") == 2
    assert said.count("503") == 1
    assert said.rstrip().endswith("the pool's tools are read; turns are answered now")
