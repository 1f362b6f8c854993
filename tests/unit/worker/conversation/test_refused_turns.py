"""Who is to blame where a template refuses what follows a turn, if deltas depend on earlier messages."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.conversations import spec_of
from tests.support.tiny_tokenizers import write_tokenizer

from rolloutpool_common.errors import TemplateRefusedTurn, TemplateUnusable
from rolloutpool_common.protocol.journal import TrainerKind
from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_worker.conversation.tokens import TokenTrack

SWITCHED = (
    "{% for m in messages %}{% if ' ' in (m.name or '') %}{{ raise_exception('a name has no spaces') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{{ '<think></think>' if messages[0].role == 'system' and '/no_think' in messages[0].content }}{% endif %}"
)
NO_RESULTS = "{% if messages[-1].role == 'tool' %}{{ raise_exception('no results') }}{% endif %}"
CUTTING = SWITCHED.replace("m.content + ", "m.content[:60] + ")
LONG = "<|endoftext|>" + "_word" * 20
RESULT: dict[str, Any] = {"role": "tool", "name": "add", "tool_call_id": "callabcde", "content": "38"}
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "/no_think"},
    {"role": "user", "content": "Calculate 15 + 23"},
    {"role": "assistant", "content": "It is 38."},
]


@pytest.mark.parametrize(
    ("template", "changed", "blames", "says"),
    [
        (SWITCHED, {"name": "a b"}, TemplateRefusedTurn, "no spaces"),
        (NO_RESULTS + SWITCHED, {}, TemplateUnusable, "no results"),
        # What a tool says was not sampled, and a name was.
        (CUTTING, {"content": LONG}, TemplateUnusable, r"turn 1: The template cuts.*`<\|endoftext\|>`"),
        (SWITCHED.replace("m.role + '", "(m.name or m.role)[:60] + '"), {"name": LONG}, TemplateRefusedTurn, "cuts"),
    ],
)
async def test_the_policy_is_blamed_for_what_it_sampled_alone(
    tmp_path: Path, template: str, changed: dict[str, str], blames: type[Exception], says: str
) -> None:
    write_tokenizer(tmp_path, template)
    tokenizer = load_tokenizer(str(tmp_path))
    tokens = TokenTrack(spec_of(), tokenizer, [], TrainerKind.UNKNOWN)
    tokens.ledger.seed(tokenizer.render_prompt(HISTORY[:2]))
    sampled = tokenizer.encode("It is 38.<|im_end|>")
    tokens.ledger.append_sampled(sampled, [-0.5] * len(sampled), turn=1)
    with pytest.raises(blames, match=says):
        await tokens.append([{**RESULT, **changed}], HISTORY, 1)
