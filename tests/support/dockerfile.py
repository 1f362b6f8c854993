"""Dockerfiles as data: their instructions in order, by stage. Knows the subset that deploy/ uses, refuses the rest."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

KNOWN = {"ARG", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "LABEL", "RUN", "USER", "WORKDIR", "CMD"}


@dataclass(frozen=True)
class Instruction:
    """One line, with its continuations."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The arguments; of the exec form, the list's own."""
        return list(json.loads(self.text)) if self.text.startswith("[") else shlex.split(self.text)


@dataclass
class Stage:
    """From one FROM to the next."""

    base: str
    name: str | None
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        """The instructions of one kind."""
        return [instruction for instruction in self.instructions if instruction.name == name]

    @property
    def env(self) -> dict[str, str]:
        """What ARG and ENV set, with earlier values filled in."""
        values: dict[str, str] = {}
        for instruction in self.instructions:
            if instruction.name in ("ARG", "ENV"):
                name, _, value = instruction.text.partition("=")
                values[name] = re.sub(r"\$(\w+)", lambda found: values.get(found[1], found[0]), value)
        return values


def stages(path: Path) -> list[Stage]:
    """The stages of a Dockerfile."""
    found: list[Stage] = []
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, text = line.strip().partition(" ")
        if name == "FROM":
            base, _, alias = text.partition(" AS ")
            found.append(Stage(base, alias or None))
            continue
        assert name in KNOWN, f"{path.name}: {name} is not understood here"
        found[-1].instructions.append(Instruction(name, text.strip()))
    return found
