"""Writes docs/client.md from signatures and docstrings: `make generate`; `--check` writes nothing.

1. What a page has of a class: its docstring and that of `__init__`, its fields, and each public method, those of base
   classes of ours included. What a function has: its signature as it is written, and its docstring.
2. The sections of a docstring (Args, Returns, Yields, Raises) become lists.
3. `--check` returns 1 if the page is not current.
"""

import argparse
import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, get_args, get_origin

from scripts.write_reference import meanings, table

import rolloutpool_trainer
from rolloutpool_common import rendering
from rolloutpool_trainer import errors

PAGE = Path(__file__).parents[1] / "docs" / "client.md"
HEAD = """# Client

What a trainer imports: each class and function with its signature, as the code documents them. `make generate` writes
this page from the docstrings; [training](training.md) shows how the parts work together.

`AsyncRolloutClient`, `AsyncBatch`, `AsyncTrainableGroup` and `AsyncRolloutStream` are the same for asyncio: their
methods are awaited, and what yields is read with `async for`. Names of `rolloutpool_trainer` are imported from there,
names of `rolloutpool_rl` from their modules, `load_tokenizer` and `ChatTokenizer` from `rolloutpool_common.rendering`.
"""
TRAINER = {
    "A pool": ("RolloutClient", "LocalPool"),
    "Batches": ("Batch", "TrainableGroup", "FinishedGroup"),
    "Streams": ("RolloutStream",),
    "The endpoint": ("callback_app", "CallbackApp", "serve_callback", "GenerateParams", "Generation"),
    "Policies": ("batched", "TransformersSampler", "Demonstrations"),
}
"""Names of `rolloutpool_trainer`, by heading."""
OF_TOKENIZERS = ("name", "vocab_size", "close_id", "closing", "stop_ids", "encode", "decode")
"""What a trainer uses of a `ChatTokenizer`; the renders are the pool's."""
MATHS = (
    *("advantages", "turn_rewards", "losses", "reductions", "logits", "padded_batch", "export", "attachments"),
    *("prefix_tree", "role_masks", "inference_context"),
)
"""Modules of `rolloutpool_rl`."""
SECTIONS = ("Args", "Returns", "Yields", "Raises")
SHOWN = {"asynccontextmanager", "classmethod", "contextmanager"}
"""Decorators without which a signature would mislead."""


def page() -> str:
    """Makes the page."""
    parts = [HEAD]
    for heading, names in TRAINER.items():
        parts.append(f"## {heading}\n")
        parts += [described(name, getattr(rolloutpool_trainer, name)) for name in names]
    parts.append("## Tokenizers\n")
    parts.append(described("load_tokenizer", rendering.load_tokenizer))
    parts.append(described("ChatTokenizer", rendering.ChatTokenizer, only=OF_TOKENIZERS))
    parts.append("## Maths\n")
    for name in MATHS:
        module = importlib.import_module(f"rolloutpool_rl.{name}")
        parts.append(f"### `{module.__name__}`\n\n{prose(module.__doc__ or '')}\n")
        parts += [described(one, value, level=4) for one, value in public(module)]
    rows = [(f"`{name}`", prose(getattr(errors, name).__doc__ or "")) for name in errors.__all__]
    parts.append(f"## Errors\n\n{table('error|means', rows)}\n")
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(parts))
    # It also formats the code in Markdown.
    line = [sys.executable, "-m", "ruff", "format", "-", "--stdin-filename", str(PAGE)]
    return subprocess.run(line, input=text, capture_output=True, text=True, check=True).stdout


def public(module: ModuleType) -> list[tuple[str, Any]]:
    """A module's classes and functions for others; types and constants have no docstring of their own."""
    known = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
    ]
    found = [(name, getattr(module, name)) for name in known if not name.startswith("_")]
    found = [(name, value) for name, value in found if isinstance(value, type | FunctionType)]
    return sorted(found, key=lambda one: (isinstance(one[1], FunctionType), one[0]))


def described(name: str, value: Any, level: int = 3, only: Sequence[str] = ()) -> str:
    """Describes a class or a function; of a class that callers don't make themselves, `only` these members."""
    if not isinstance(value, type):
        return function(name, value, level)
    parts = [f"{'#' * level} `{name}`\n", prose(value.__doc__ or "")]
    maker = inspect.getattr_static(value, "__init__")
    # That of a dataclass has no source.
    if inspect.isfunction(maker) and not is_dataclass(value) and not only:
        parts.append(filled_in(value, function(name, maker, None)))
    known = meanings(value)
    for base in ours(value):
        known |= attributes(base)
    shown = {one for one in known if not one.startswith("_")} & set(only or known)
    if fields := [(f"`{one}`", text) for one, text in known.items() if one in shown]:
        parts.append(table("field|is", fields))
    parts += [function(f"{name}.{one}", member, level + 1) for one, member in methods(value) if not only or one in only]
    return "\n\n".join(parts) + "\n"


def ours(owner: type) -> list[type]:
    """A class and its bases of ours."""
    return [base for base in owner.__mro__ if base.__module__.startswith("rolloutpool_")]


def filled_in(owner: type, text: str) -> str:
    """Puts into the place of each type variable what the class has for it."""
    for base in vars(owner).get("__orig_bases__", ()):
        variables = getattr(get_origin(base), "__parameters__", ())
        for variable, given in zip(variables, get_args(base), strict=True):
            text = re.sub(rf"\b{variable.__name__}\b", given.__name__, text)
    return text


def attributes(owner: type) -> dict[str, str]:
    """The docstrings below what `__init__` sets."""
    found = {}
    node: Any = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    makers = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    for maker in makers:
        for statement, below in pairwise(maker.body):
            match statement, below:
                case (
                    ast.AnnAssign(target=ast.Attribute(attr=name)) | ast.Assign(targets=[ast.Attribute(attr=name)]),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = " ".join(text.split())
                case _:
                    pass
    return found


def methods(owner: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods and properties of a class, and of its bases of ours, in the order of the code."""
    seen = set()
    for base in owner.__mro__:
        for name, member in vars(base).items():
            found = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if name.startswith("_") or name in seen or not callable(found) or isinstance(found, type):
                continue
            function = inspect.unwrap(found)
            if inspect.isfunction(function) and function.__module__.startswith("rolloutpool_"):
                seen.add(name)
                yield name, function


def function(name: str, value: Callable[..., Any], level: int | None) -> str:
    """Describes a function, below a heading where there is a level."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    own = name.rpartition(".")[2]
    decorators = {ast.unparse(one) for one in node.decorator_list}
    heading = [] if level is None else [f"{'#' * level} `{name}`"]
    if "property" not in decorators:
        shown = "".join(f"@{one}\n" for one in sorted(decorators & SHOWN))
        heading.append(f"```python\n{shown}{signature(own, node)}\n```")
    return "\n\n".join([*heading, prose(ast.get_docstring(node) or "")])


def signature(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Writes a signature without `self`, as code that can be parsed; ruff breaks its lines."""
    arguments = node.args
    for given in (arguments.posonlyargs, arguments.args):
        if given and given[0].arg in ("self", "cls"):
            del given[0]
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returned = "" if node.returns is None or node.name == "__init__" else f" -> {ast.unparse(node.returns)}"
    return f"{kind} {name}({ast.unparse(arguments)}){returned}: ..."


def prose(docstring: str) -> str:
    """Writes a docstring as Markdown: paragraphs in a line each, sections as lists."""
    parts = []
    for block in re.split(r"\n{2,}", inspect.cleandoc(docstring)):
        head, _, below = block.partition("\n")
        if head.rstrip(":") in SECTIONS and head.endswith(":"):
            parts.append(f"*{head.rstrip(':')}*\n\n{listed(below)}")
        elif re.match(r"    |\| ", block):
            parts.append(block)
        else:
            # A list, or steps, keep a line for each entry.
            parts.append(re.sub(r"\n(?!- |\d+\. )\s*", " ", block))
    return "\n\n".join(parts)


def listed(block: str) -> str:
    """Writes a section: each entry begins at the margin, and goes on further in."""
    entries = re.sub(r"\n +", " ", textwrap.dedent(block)).splitlines()
    return "\n".join(re.sub(r"^\*{0,2}(\w+): ", r"- `\1`: ", one) if ":" in one else one for one in entries)


def main() -> int:
    """Write the page, or with `--check` return 1 if it is not current."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the page is not current")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print(f"{PAGE.name}: not what the code says; run `make generate`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
