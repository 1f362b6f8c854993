"""Random renders against proofs: `python -m tests.property.proofs --examples 50000`.

A proof says of what the text behind a turn is made, or what it cannot depend on. So each example draws a shape and a
conversation of it, renders that with the real engine, and holds what follows the sentinel against the parts (P2). Then
it changes all that the proof says is not read, above all the earlier messages, and renders again: the text must be the
same (P1). Words are mostly what the template itself looks for. An example is named by `seed:number`.
"""

import argparse
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from tests.property.families import FAMILIES
from tests.property.proof_conversations import ODD_ROLES, Writer
from tests.property.rare_families import RARE
from tests.property.wild_families import WILD
from tests.tokenizers.layout import BUILD, TEMPLATE_BUILD, TINY
from transformers.utils.chat_template_utils import render_jinja_template

from rolloutpool_common.rendering.proof.claims import NewMessage, Proof, Source, TurnShape, Word
from rolloutpool_common.rendering.proof.prover import prove
from rolloutpool_common.rendering.render_clock import one_time
from rolloutpool_common.rendering.sentinel import after_sentinel
from rolloutpool_common.rendering.transformers_compat import template_environment

Message = dict[str, Any]
RENDERS = 6
"""Renders of one shape before another is drawn."""
_MEMORY = 4 << 30
BATCH = 10
"""Shapes of one template before the next has its turn, because transformers forgets compiled templates."""
_KWARGS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"enable_thinking": True},
    {"enable_thinking": False},
    {"date_string": "26 Jul 2024", "thinking": True},
    {"reasoning_effort": "low", "clear_thinking": False, "preserve_thinking": True},
)


class FalseProof(AssertionError):
    """A render is not what its proof says."""


@dataclass(frozen=True)
class Subject:
    """A template, with the special tokens that it is given."""

    name: str
    source: str
    names: Mapping[str, str] = field(hash=False, compare=False)


@dataclass
class Tally:
    """What the examples covered."""

    shapes: int = 0
    parts: int = 0
    independent: int = 0
    renders: int = 0
    raised: int = 0
    part_checks: int = 0
    history_checks: int = 0
    subjects: set[str] = field(default_factory=set)


def subjects(more: Path | None = None) -> list[Subject]:
    """Every template at hand; `more` is a folder of tokenizers."""
    found = [
        Subject(name, family.template, {"eos_token": family.eos, "bos_token": "<bos>"})
        for name, family in {**FAMILIES, **WILD, **RARE}.items()
    ]
    folders = [TINY, *_folders(BUILD), *_folders(TEMPLATE_BUILD)]
    if more is not None:
        folders += [*_folders(more), *(inner for folder in _folders(more) for inner in _folders(folder))]
    for folder in folders:
        found += _of_folder(folder)
    distinct = {subject.source: subject for subject in reversed(found)}
    return sorted(
        (s for s in distinct.values() if template_environment(s.source) is not None), key=lambda subject: subject.name
    )


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _of_folder(folder: Path) -> Iterator[Subject]:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return
    config = json.loads(path.read_text(encoding="utf-8"))
    tokens = {key: config.get(key) for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
    names = {key: str(t.get("content") if isinstance(t, dict) else t) for key, t in tokens.items() if t}
    template = config.get("chat_template")
    file = folder / "chat_template.jinja"
    if file.is_file():
        template = file.read_text(encoding="utf-8")
    if isinstance(template, str):
        yield Subject(folder.name, template, names)
    for named in template if isinstance(template, list) else ():
        yield Subject(f"{folder.name}:{named['name']}", named["template"], names)


@lru_cache(maxsize=4096)
def proof_of(subject: Subject, shape: TurnShape, kwargs: str) -> Proof:
    """A template's proof; `kwargs` as JSON."""
    environment = template_environment(subject.source)
    assert environment is not None
    return prove(environment, subject.source, shape, kwargs=json.loads(kwargs), names=subject.names)


def shapes(random: Random) -> TurnShape:
    """A random shape."""
    if random.random() < 0.25:
        return _asked(random)
    calls = random.choice((0, 0, 1, 1, 1, 2))
    tool = random.choice(
        (("content", "role"), ("content", "role", "tool_call_id"), ("content", "name", "role", "tool_call_id"))
    )
    plain = ("content", "role")
    new = [NewMessage("tool", tool)] * calls
    if not calls or random.random() < 0.2:
        new.append(NewMessage("user", plain))
    if random.random() < 0.08:
        new.insert(random.randrange(len(new) + 1), NewMessage(random.choice(("system", "user", *ODD_ROLES)), plain))
    says = random.random() < (0.3 if calls else 0.9)
    return TurnShape(
        says=says,
        spoken=says or random.random() < 0.3,
        calls=calls,
        as_text=bool(calls) and random.random() < 0.3,
        beside=random.choice(((), (), (), ("reasoning_content",))),
        new=tuple(new),
        system=random.random() < 0.4,
        tools=random.random() < 0.5,
    )


def _asked(random: Random) -> TurnShape:
    """Turns and results behind a question, as increments of prompts have them."""
    new: list[NewMessage] = []
    for _ in range(random.choice((0, 1, 1, 1, 2))):
        calls = random.choice((0, 1, 1, 2))
        said = random.choice(
            ((("content", "role"), ()), (("role",), (("content", ""),)), (("role",), (("content", None),)))
        )
        new.append(NewMessage("assistant", said[0], calls, bool(calls) and random.random() < 0.5, said[1]))
        new += [NewMessage("tool", ("content", "name", "role", "tool_call_id"))] * calls
    return TurnShape(
        says=True,
        calls=0,
        as_text=True,
        beside=(),
        new=tuple(new),
        system=random.random() < 0.4,
        tools=random.random() < 0.5,
        asked=True,
    )


def words_of(message: Message) -> dict[str, Any]:
    """The texts and tables of a message, by the keys of a proof's words."""
    words = {key: value for key, value in message.items() if value and key not in ("role", "tool_calls")}
    for i, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        words |= {f"{i}.id": call["id"], f"{i}.name": function["name"], f"{i}.arguments": function["arguments"]}
    return words


def passes(proof: Proof, shape: TurnShape, new: list[Message]) -> bool:
    """Whether the guard lets the new messages' texts pass."""
    for number, (message, (_, keys, calls, _, _)) in enumerate(zip(new, shape.new, strict=True)):
        words = words_of(message)
        if len(words) != len(keys) - 1 + 3 * calls or {} in words.values():
            return False  # One of them is empty.
        for key, text in words.items():
            if not isinstance(text, str):
                continue
            if not text or any(literal in text for literal in proof.guard):
                return False
            if text != text.strip() and Word(number, key) in proof.trimmed:
                return False
    return True


def examine(subject: Subject, shape: TurnShape, random: Random, tally: Tally, renders: int = RENDERS) -> None:
    """Prove a template for one shape, and hold that against renders.

    Raises:
        FalseProof: One of them is not as proved.
    """
    kwargs = random.choice(_KWARGS)
    proof = proof_of(subject, shape, json.dumps(kwargs))
    tally.shapes += 1
    tally.parts += proof.parts is not None
    tally.independent += proof.independent
    if proof.parts is not None or proof.independent:
        compare(subject, shape, proof, kwargs, random, tally, renders)


def compare(
    subject: Subject,
    shape: TurnShape,
    proof: Proof,
    kwargs: Mapping[str, Any],
    random: Random,
    tally: Tally,
    renders: int = RENDERS,
) -> None:
    """Hold a proof against renders.

    Raises:
        FalseProof: One of them is not as proved.
    """
    writer = Writer(subject.source, random)
    fixed, expected = writer.conversation(shape), None
    for _ in range(renders):
        fresh = writer.conversation(shape)
        drawn = {
            source: fixed[source] if proof.independent and source in proof.reads else fresh[source] for source in fixed
        }
        messages = [*writer.history(shape, drawn[Source.SYSTEM]), drawn[Source.TURN], *drawn[Source.NEW]]
        behind = _behind(subject, messages, drawn[Source.TOOLS], kwargs)
        tally.renders += 1
        if behind is None:
            tally.raised += 1
            continue
        shown = f"{shape}\n{proof}\n{json.dumps([messages, drawn[Source.TOOLS], kwargs], ensure_ascii=False)}"
        if proof.parts is not None and passes(proof, shape, drawn[Source.NEW]):
            joined = "".join(
                p if isinstance(p, str) else p.write(words_of(drawn[Source.NEW][p.message])[p.key]) for p in proof.parts
            )
            tally.part_checks += 1
            if behind != joined:
                raise FalseProof(f"{subject.name}, P2: {joined!r} is proved, {behind!r} is rendered\n{shown}")
        if proof.independent:
            tally.history_checks += expected is not None
            if expected not in (None, behind):
                raise FalseProof(f"{subject.name}, P1: {expected!r}, then {behind!r}\n{shown}")
            expected = behind
        tally.subjects.add(subject.name)


def _behind(subject: Subject, messages: list[Message], tools: Any, kwargs: Mapping[str, Any]) -> str | None:
    """What the real engine writes behind the sentinel; None where it raises an error or leaves the turn out."""
    try:
        with one_time():
            options: dict[str, Any] = {**subject.names, **kwargs, "add_generation_prompt": True}
            rendered = render_jinja_template([messages], tools, chat_template=subject.source, **options)
    except Exception:  # a template is foreign code and may raise anything
        return None
    return after_sentinel(str(rendered[0][0]))


def main() -> None:
    """Parse the arguments, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=50_000, help="renders")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--templates", type=Path, help="a folder of further tokenizers")
    parser.add_argument("--made", action="store_true", help="random templates instead of those at hand")
    parser.add_argument("--subject", help="only the template of this name")
    options = parser.parse_args()
    # Random templates double texts.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    from tests.property.made_templates import made  # it needs `Subject`

    started = time.monotonic()
    found = [s for s in subjects(options.templates) if options.subject in (None, s.name)]
    tally, number, wrong = Tally(), 0, Counter[str]()
    while tally.renders < options.examples:
        subject = found[number // BATCH % len(found)]
        random = Random(f"{options.seed}:{number}")
        if options.made:
            subject = made(f"{options.seed}:{number // BATCH}")
            if template_environment(subject.source) is None:
                number += BATCH
                continue
        try:
            examine(subject, shapes(random), random, tally)
        except FalseProof as false:
            wrong[subject.name] += 1
            if wrong[subject.name] == 1:
                print(
                    f"\n{subject.source if options.made else ''}\n{options.seed}:{number} FALSE PROOF: {false}",
                    file=sys.stderr,
                )
        number += 1
    counts = {name: value for name, value in vars(tally).items() if name != "subjects"}
    print(f"{len(found)} templates, {counts}, {len(tally.subjects)} templates checked")
    print(f"{wrong.total()} false proofs {dict(wrong)}, {time.monotonic() - started:.0f} s, seed {options.seed}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
