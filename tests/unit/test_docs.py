"""The documents say what is so: links lead somewhere, code compiles, tables are what the code says."""

import ast
import pkgutil
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from benchmarks.length_difference import count
from scripts.write_client_page import PAGE as CLIENT_PAGE
from scripts.write_client_page import page as client_page
from scripts.write_reference import PAGES, TABLES, written

from rolloutpool_api.settings import ApiSettings
from rolloutpool_common.protocol.batch import TrainerPorts
from rolloutpool_trainer.cli.doctor import CALLBACK_PORTS
from rolloutpool_worker.queue.flower import FlowerSettings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "tests" / "README.md",
    ROOT / "deploy" / "monitoring" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
PAPERS = [
    *DOCUMENTS,
    *sorted((ROOT / "deploy").iterdir()),
    *sorted((ROOT / "examples").iterdir()),
    ROOT / "docker-compose.yml",
]
DISTRIBUTIONS = ("common", "api", "worker", "rl", "trainer")
NO_SETTINGS = {
    "ROLLOUTPOOL_NAME",
    # Read by tests and by the compose file.
    "ROLLOUTPOOL_BUILT_IMAGES",
    "ROLLOUTPOOL_FAILPOINTS",
    "ROLLOUTPOOL_PORT",
    "ROLLOUTPOOL_REQUIRE_AXE",
    "ROLLOUTPOOL_REQUIRE_BROWSER",
    "ROLLOUTPOOL_REQUIRE_TOKENIZERS",
    # Read until 0.1 or 0.2, as the changelog says.
    "ROLLOUTPOOL_PORT_PATIENCE",
    "ROLLOUTPOOL_SECRETS_KEYS",
    "ROLLOUTPOOL_TICKETS_OF",
}
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def section(document: str, heading: str) -> str:
    """The text below a heading, up to the next one of its rank or above."""
    rank = heading.partition(" ")[0]
    start = document.index(f"\n{heading}\n") + len(heading) + 2
    end = re.search(rf"^#{{1,{len(rank)}}} ", document[start:], re.MULTILINE)
    return document[start : start + end.start()] if end else document[start:]


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows in a text."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|--")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def anchor(heading: str) -> str:
    """The fragment by which a heading is linked to."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def found_in(papers: Sequence[Path], look: Callable[[Path], Iterable[object]]) -> dict[str, list[object]]:
    """What is wrong with each of some papers; those with nothing are left out. Folders are not looked into."""
    found = {str(paper.relative_to(ROOT)): list(look(paper)) for paper in papers if paper.is_file()}
    assert found
    return {name: wrong for name, wrong in found.items() if wrong}


def dead_links(document: Path) -> Iterator[str]:
    """Links to files and headings that are not there."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        name, _, fragment = target.partition("#")
        linked = (document.parent / name).resolve() if name else document
        if "://" in target:
            continue
        if not linked.exists() or (
            fragment and fragment not in map(anchor, re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE))
        ):
            yield target


def test_links_lead_somewhere() -> None:
    assert found_in(DOCUMENTS, dead_links) == {}


def test_python_compiles() -> None:
    blocks = [
        code
        for document in DOCUMENTS
        for code in re.findall(r"^```python\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
    ]
    assert blocks
    for code in blocks:
        ast.parse(code)


def test_names_no_registry_and_no_machine() -> None:
    host = re.compile(r"pypi\.|npmjs|docker\.io|ghcr\.|quay\.io|gcr\.io|/work/|/tmp/|huggingface\.co")
    assert found_in(PAPERS, lambda paper: host.findall(paper.read_text())) == {}


def test_every_setting_that_is_named_exists() -> None:
    tables = "\n".join(line for line in OPERATIONS.splitlines() if line.startswith("|"))
    known = set(re.findall(r"`(\w+)`", tables)) | NO_SETTINGS
    named = re.compile(r"\bROLLOUTPOOL_[A-Z0-9_]*[A-Z0-9]\b")
    assert found_in(PAPERS, lambda paper: set(named.findall(paper.read_text())) - known) == {}


def test_ports_are_those_of_the_settings() -> None:
    ports = {row[0] for row in rows(section(OPERATIONS, "## Ports"))}
    assert f"{CALLBACK_PORTS.start}\N{EN DASH}{CALLBACK_PORTS.stop - 1}" in ports
    assert f"{TrainerPorts.model_fields['base_port'].default} + i" in ports
    assert str(ApiSettings.model_fields["rollout_server_port"].default) in ports
    assert str(FlowerSettings.model_fields["flower_port"].default) in ports


def test_figures_of_the_readme_are_what_the_command_counts() -> None:
    rendered, _, ids = count()
    row = [f"difference of lengths, {rendered} cases", str(ids), "", str(rendered - ids)]
    assert row in rows(section(README, "## Why the mask is the point"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_what_the_code_says(page: Path) -> None:
    text = page.read_text()
    assert "<!-- table: " in text
    assert written(text) == text, "run `make generate`"


def test_the_page_of_the_client_is_what_the_docstrings_say() -> None:
    assert CLIENT_PAGE.read_text() == client_page(), "run `make generate`"


def test_each_table_is_on_a_page() -> None:
    named = {name for page in PAGES for name in re.findall(r"<!-- table: (\w+) -->", page.read_text())}
    assert named == TABLES.keys()


def test_each_field_that_a_table_has_is_explained() -> None:
    tables = [line for page in PAGES for line in page.read_text().splitlines() if re.match(r"\|`\w+`\|", line)]
    assert len(tables) > 150
    assert [line for line in tables if line.endswith("||")] == []


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    # What was released may have gone since.
    texts = [path.read_text().partition("\n## [0.")[0] for path in DOCUMENTS if path.parent.name != "releases"]
    named = re.findall(r"(?:^|`)make ([a-z-]+)", "\n".join(texts), re.MULTILINE)
    assert set(named) - targets == set()


def test_every_test_that_is_named_exists() -> None:
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    for heading, below in re.findall(r"^\|.*`(tests/[\w/]+\.py)` \|\n((?:\|.*\n)+)", text, re.MULTILINE):
        named += [(heading, test) for test in re.findall(r"`(test_\w+)`", below)]
    assert named
    assert [name for name in named if not re.search(rf"def {name[1]}\(", (ROOT / name[0]).read_text())] == []


def resolve(path: str) -> Path:
    """Where a path of the documents is: they leave `src/rolloutpool_X/` out."""
    first, _, rest = path.partition("/")
    inside = ROOT / first / "src" / f"rolloutpool_{first}" / rest
    return inside if first in DISTRIBUTIONS and inside.exists() else ROOT / path


def named_paths(text: str) -> list[str]:
    """What is written in code marks and looks like a path of this repository: a folder, or a file with a known end."""
    words = re.findall(r"(?<!`)`([\w.][\w./-]*/[\w./-]*)`(?!`)", text)
    tops = {path.name for path in ROOT.iterdir()}
    return [
        word
        for word in words
        if word.partition("/")[0] in tops
        and re.search(r"/$|\.(py|lua|md|toml|json|yml|txt|lock|Dockerfile|svg)$", word)
        and not word.startswith("build/")
    ]


def test_every_path_that_is_named_exists() -> None:
    def missing(document: Path) -> list[str]:
        return [path for path in named_paths(document.read_text()) if not resolve(path).exists()]

    assert found_in(DOCUMENTS, missing) == {}


def test_paths_are_found_in_a_text() -> None:
    text = "`common/store/keys.py` and `worker/tools/`, not `application/json`, `a/b` or `build/tokenizers/`"
    assert named_paths(text) == ["common/store/keys.py", "worker/tools/"]
    assert resolve("common/store/keys.py").is_file()
    assert resolve("common/pyproject.toml").is_file()


def test_every_module_that_is_named_exists() -> None:
    named = {name for path in DOCUMENTS for name in re.findall(r"`(rolloutpool_\w+(?:\.\w+)+)`", path.read_text())}
    assert named
    for name in named:
        assert pkgutil.resolve_name(name) is not None


def drawn_paths(tree: str) -> Iterator[str]:
    """The folders of a tree that is drawn by indentation."""
    above: list[str] = []
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        above[depth:] = [line.split()[0]]
        yield "".join(above)


def test_the_tree_of_the_architecture_is_that_of_the_code() -> None:
    tree = section(ARCHITECTURE, "## The house").split("```")[1].strip()
    drawn = {resolve(path) for path in drawn_paths(tree)}
    assert [path for path in drawn if not path.is_dir()] == []
    rooms = {
        module.parent
        for name in DISTRIBUTIONS
        for suffix in ("py", "lua")
        for module in (ROOT / name / "src").rglob(f"*.{suffix}")
    }
    below = {room for room in rooms if room.parent.name == "protocol" or "capabilities" in room.parent.parts}
    # Where graders were, plug-ins still find them.
    below.add(resolve("worker/graders/"))
    assert rooms - below - {resolve(f"{name}/") for name in DISTRIBUTIONS} <= drawn


def test_every_import_contract_is_explained_and_exists() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    named = [row[1].strip("`") for row in rows(section(ARCHITECTURE, "### What may import what"))[1:]]
    assert sorted(named) == sorted(contract["id"] for contract in contracts)


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    assert [path.name for path in sorted(folder.glob("0*.md")) if f"]({path.name})" not in index] == []
