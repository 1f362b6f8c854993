"""Small template families, one for each construct of strangers' templates that was once rendered wrong.

Each is a chat template over the tiny tokenizer, with what is known about it by hand: the strings that end an answer and
a turn with calls.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.tiny_tokenizers import write_tokenizer

__all__ = ["FAMILIES", "GENERATION", "LOOP", "Family", "lay_out"]

LOOP = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
GENERATION = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


@dataclass(frozen=True)
class Family:
    """A template with its control strings and ends."""

    template: str
    special: tuple[str, ...] = ()
    eos: str = "<|im_end|>"
    answer_ends: tuple[str, ...] = ("<|im_end|>",)
    call_ends: tuple[str, ...] = ("<|im_end|>",)


FAMILIES = {
    "ends_twice": Family(
        "{% for m in messages %}"
        "{{ '<|turn|>' + m.role + '<|text|>' + m.content + '<|end_text|><|end_turn|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|turn|>assistant<|text|>' }}{% endif %}",
        ("<|turn|>", "<|text|>", "<|end_text|>", "<|end_turn|>"),
        eos="<|endoftext|>",
        answer_ends=("<|end_turn|>",),
        call_ends=("<|end_turn|>",),
    ),
    "no_think": Family(
        "{% set quiet = messages[0].role == 'system' and '/no_think' in messages[0].content %}"
        + LOOP
        + GENERATION
        + "{% if add_generation_prompt %}{{ '<think></think>' if quiet else '<think>\n' }}{% endif %}"
    ),
    "rounds": Family(
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.n = ns.n + 1 %}"
        "{{ '[Round ' ~ ns.n ~ ']' }}{% endif %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
        "{% endfor %}" + GENERATION
    ),
    "counted_results": Family(
        "{% set ns = namespace(n=0) %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
        "{% if m.role == 'tool' %}{{ '{\"id\": ' ~ ns.n ~ '}' }}{% set ns.n = ns.n + 1 %}{% endif %}"
        "{{ m.content + '<|im_end|>\n' }}{% endfor %}" + GENERATION
    ),
    "wrapped_with_tools": Family(
        LOOP.replace("m.content", "('<tool_response>' + m.content if tools and m.role == 'tool' else m.content)")
        + GENERATION
    ),
    "plain_headers": Family(
        "{% for m in messages %}{{ '### ' + m.role + ':\n' + m.content }}"
        "{{ eos_token + '\n\n' if m.role == 'assistant' else '\n\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '### assistant:\n' }}{% endif %}",
        eos="<|endoftext|>",
        answer_ends=("<|endoftext|>",),
        call_ends=("<|endoftext|>",),
    ),
    "built_headers": Family(
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
        ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"),
    ),
    "call_markup": Family(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' + '<|call_end|>' }}{% endfor %}"
        "{{ m.content + '<|im_end|>\n' }}{% endfor %}" + GENERATION,
        ("<|call_end|>",),
    ),
}


def lay_out(folder: Path) -> Iterator[tuple[str, Path]]:
    """Writes the families below a folder; yields the name and directory of each."""
    for name, family in FAMILIES.items():
        directory = folder / name
        directory.mkdir(parents=True, exist_ok=True)
        write_tokenizer(directory, family.template, family.special, family.eos)
        yield f"family:{name}", directory
