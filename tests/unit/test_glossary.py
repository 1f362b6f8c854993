"""docs/glossary.md names modules that exist, and words that the code no longer uses are not used."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
DISTRIBUTIONS = ("common", "api", "worker", "rl", "trainer")
SOURCES = [path for name in DISTRIBUTIONS for path in (ROOT / name / "src").rglob("*.py")]
HEADER = {"word", "---"}
RETIRED = {
    "solo": "isolated worker",
    "doomed tombstone forestall": "precancel",
    "bury": "deregister",
    "parked port_patience": "deferred, trainer_down_timeout",
    "Gate": "AuthMiddleware; in a worker, admission",
    "Ask read_ask": "TurnRequest, parse_request",
    "refusals": "EndpointError",
    "Transcript": "SamplingLog; of a tokenizer, RenderedConversation",
    "Guard untrusted": "ControlTokenEscaper, control_tokens",
    "PlainCounter render_plain": "RerenderCounter, rerender",
    "believe": "ingest_reply",
    "patience PATIENCE": "backoff, retry policy",
    "Chore kick": "PeriodicTask, wake",
    "visible": "sanitize",
    "Standing": "PoolStats",
    "Report Verdict Finding": "TokenizerReport, TokenizerVerdict, ProbeFinding",
    "AGREES": "NO_DRIFT",
}
"""Words of earlier releases, in old logs and patches, and the word that the code has now."""


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table, without its header."""
    text = TEXT.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    # A bar inside a cell is escaped.
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    return [cells for cells in ([cell.strip() for cell in line] for line in lines) if cells[0] not in HEADER]


def words() -> list[list[str]]:
    sections = ("Work and results", "Tokens", "Asking the policy", "Keeping work safe")
    return [row for section in sections for row in rows(section)]


@cache
def written(path: Path) -> tuple[set[str], set[str]]:
    """The names in a module, of modules, classes, functions, arguments, variables and attributes, and its constants."""
    names, constants = {path.stem}, set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                names.add(name)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.alias(name=name, asname=other):
                names.add(other or name)
            case ast.keyword(arg=str(name)):
                names.add(name)
            case ast.Constant(value=value):
                constants.add(str(value))
            case _:
                pass
    return names, constants


def test_each_word_has_a_sentence_and_a_module() -> None:
    assert len(words()) > 50
    for word, meaning, _elsewhere, module in words():
        assert word.startswith("**"), word
        assert meaning.endswith("."), word
        assert re.fullmatch(r"`[\w./]+`", module), word


def test_no_word_is_explained_twice() -> None:
    names = [name for word, *_ in words() for name in word.strip("*").split(", ")]
    assert len(names) == len(set(names))


def test_each_module_exists() -> None:
    for _, _, _, cell in words():
        distribution, _, rest = cell.strip("`").partition("/")
        path = ROOT / distribution / "src" / f"rolloutpool_{distribution}" / rest
        assert path.is_file(), cell


def test_no_retired_word_is_a_name_in_the_code() -> None:
    retired = {word for words in RETIRED for word in words.split()}
    assert len(retired) > 20
    used = {(name, str(path.relative_to(ROOT))) for path in SOURCES for name in retired & written(path)[0]}
    assert used == set()


def test_kept_names_are_still_there() -> None:
    known = {text for path in SOURCES for texts in written(path) for text in texts}
    kept = re.findall(r"`([\w-]+)`", TEXT.partition("\n## Kept on purpose\n")[2].partition("\n## ")[0])
    assert len(kept) >= 5
    assert [name for name in kept if name not in known] == []
