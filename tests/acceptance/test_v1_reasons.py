"""Protocol v1 says why a rollout failed: through a real API, with real workers, and without text of prompts."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.tiny_tokenizers import write_tokenizer

from rolloutpool_common.rendering import TINY, ChatTokenizer, load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_trainer import LocalPool, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

ROOT = Path(__file__).parents[2]
QUESTION = "Calculate 15 + 23, my secret number, please"
NO_TOOLS = (
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ raise_exception('this model takes no tools, not even for: ' + messages[0].content) }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def plugged_pool() -> Iterator[LocalPool]:
    env = {"ROLLOUTPOOL_PLUGINS": "tests.support.plugins", "PYTHONPATH": str(ROOT)}
    with LocalPool(workers=1, flower=False, tokenizers=[TINY], env=env) as pool:
        yield pool


def answered(pool: LocalPool, url: str, **fields: Any) -> dict[str, Any]:
    body = {
        "rollout_id": f"r{abs(hash(str(fields)))}",
        "server_url": url,
        "messages": [{"role": "user", "content": QUESTION}],
        "sampling_params": {},
        "max_turns": 4,
        "tokenizer_name": TINY,
        **fields,
    }
    response = httpx.post(f"{pool.url}/rollout", json=body, timeout=120)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert answer["status"] == "ERROR"
    assert len(answer["error_message"]) <= 1_000
    assert "secret number" not in answer["error_message"]
    return answer


def test_each_reason_reaches_the_caller(plugged_pool: LocalPool, tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    refusing, empty = tmp_path / "refusing", tmp_path / "empty"
    refusing.mkdir()
    write_tokenizer(refusing, NO_TOOLS)
    theirs = load_tokenizer(str(refusing))
    shutil.copytree(TINY_TOKENIZER, empty)
    (empty / "chat_template.jinja").unlink()
    with serve_callback(callback_app(ScriptedPolicy(theirs), tokenizer=theirs), [0]) as served:
        refused = answered(plugged_pool, served.url, tokenizer_name=str(refusing))
        assert "Internal server error: template_refused: turn 1: " in refused["error_message"]
        assert "this model takes no tools, not even for: " in refused["error_message"]
    with serve_callback(callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer), [0]) as served:
        missing = answered(plugged_pool, served.url, tokenizer_name=str(empty))
        assert missing["error_message"].startswith(f"Failed to load tokenizer: {empty}: it has no chat template")
        assert missing["extra_fields"] == {"error_category": "tokenizer_error"}
        stumbled = answered(plugged_pool, served.url, metadata={"termination_strategy": "stumbling"})
        assert "internal_error: the worker failed with LookupError (plugins.py:" in stumbled["error_message"]
        assert "in stumbling)" in stumbled["error_message"]
