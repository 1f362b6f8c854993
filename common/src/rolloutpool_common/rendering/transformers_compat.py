"""Holds what rendering uses of transformers beyond its documented interface, so that an upgrade breaks this file alone.

- `cached_file(..., _raise_exceptions_for_missing_entries=False)`: finds a file of a repository in the local cache, a
  directory or the hub, by the same rules as transformers itself, and returns None where the repository lacks it.
- `tokenizer.backend_tokenizer`: the `tokenizers.Tokenizer` inside; a tokenizer in pure Python has none.
- `_compile_jinja_template(source)`: the compiled template that `apply_chat_template` will use, with whose environment
  `parse_template` parses, and whose sandbox `prepare_sandbox` makes cheaper and limits. Its `root_render_func` and
  `blocks` are replaced by the guarded template's, and its `strftime_now` by one whose time can be held still
  (`render_clock`).
- `_alias_reasoning_fields(messages)`: copies a message's thoughts to all of the names that templates know them by.
  Older versions lack it (`template_keys`).
- `ImmutableSandboxedEnvironment.intercepted_binops` and jinja2's `FILTERS`, changed for the process, because
  transformers makes the environment.

`test_transformers_compat.py` runs all of them against the installed transformers.
"""

from collections.abc import Callable, Iterable
from copy import copy
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from jinja2 import Environment, nodes
from jinja2.filters import FILTERS
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase
from transformers.utils import chat_template_utils
from transformers.utils.hub import cached_file

from rolloutpool_common.rendering.render_budget import INTERCEPTED, LIMITED, guard, limited
from rolloutpool_common.rendering.render_clock import strftime_now

# Before any template is compiled: what is not intercepted is computed by the compiler already.
ImmutableSandboxedEnvironment.intercepted_binops = INTERCEPTED
FILTERS.update({name: limited(FILTERS[name]) for name in LIMITED})

_prepared: WeakKeyDictionary[Environment, nodes.Template] = WeakKeyDictionary()
"""Syntax trees. Templates are remembered by their text, so two tokenizers may share one."""
_preparing = Lock()
_Node = TypeVar("_Node", bound=nodes.Node)

_DICT = frozenset(dir(dict))
"""Names that are attributes of every dict: the sandbox must judge these itself."""
_SAFE = {
    str: frozenset(
        {"startswith", "endswith", "split", "rsplit", "strip", "lstrip", "rstrip", "replace", "lower", "upper"}
    ),
    LoopContext: frozenset({"first", "last", "index", "index0", "revindex", "length", "previtem", "nextitem"}),
}
"""Attributes that the sandbox always allows, by the exact type of their object. `format` and `format_map` are not here,
because the sandbox replaces them."""


def repository_file(where: str, name: str, revision: str | None) -> Path | None:
    """Finds a file of a repository."""
    found = cached_file(where, name, revision=revision, _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None


def backend_of(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
    """Returns the tokenizer of the library `tokenizers` inside; None for one that is written in Python only."""
    return getattr(tokenizer, "backend_tokenizer", None)


def template_environment(source: str) -> Environment | None:
    """The environment that a chat template is rendered in; None where it cannot be compiled."""
    try:
        prepare_sandbox(source)
        environment: Environment = chat_template_utils._compile_jinja_template(source).environment  # noqa: SLF001
        return environment
    except Exception:  # a template is foreign code, and compiling it may raise anything
        return None


def template_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """The keys that templates see in a message with these keys: transformers gives thoughts all of their names."""
    alias: Callable[[Any], Any] | None = getattr(chat_template_utils, "_alias_reasoning_fields", None)
    message = dict.fromkeys(keys, "")
    return tuple(alias([message])[0]) if alias else tuple(message)


def parse_template(source: str) -> nodes.Template | None:
    """The syntax tree of a chat template; None where it cannot be parsed, and then its render says why."""
    environment = template_environment(source)
    return None if environment is None else _prepared[environment]


def prepare_sandbox(source: str) -> None:
    """Makes attribute look-ups cheaper in a chat template, and limits its renders; what they give stays the same.

    The sandbox first asks a message for an attribute `role`, catches the AttributeError, and then reads the key. That
    is half of the time of a render. For exact dicts, strings and loops the outcome is known before; all else is left
    to the sandbox. Exact types only: a subclass may answer otherwise.
    """
    try:
        # At each render, because transformers forgets compiled templates when there are many.
        compiled = chat_template_utils._compile_jinja_template(source)  # noqa: SLF001
    except Exception:  # a template is foreign code, and compiling it may raise anything
        return
    environment: Environment = compiled.environment
    if environment in _prepared:
        return
    with _preparing:
        if environment in _prepared:
            return
        tree = environment.parse(source)
        # Parsing takes milliseconds, and proofs read the tree as well. The compiler changes the one that it is given.
        unchanged = _copied(tree)
        guarded = guard(environment, tree)
        compiled.root_render_func, compiled.blocks = guarded.root_render_func, guarded.blocks
        _quicken(environment)
        # On the environment: transformers makes inert text of functions that are given as variables.
        environment.globals["strftime_now"] = strftime_now
        _prepared[environment] = unchanged


def _copied(tree: _Node) -> _Node:
    """A copy of a syntax tree that does not hold its environment, so that this may be forgotten."""
    found = copy(tree)
    found.environment = None
    for name, value in tree.iter_fields():
        if isinstance(value, nodes.Node):
            setattr(found, name, _copied(value))
        elif isinstance(value, list):
            setattr(found, name, [_copied(part) if isinstance(part, nodes.Node) else part for part in value])
    return found


def _quicken(environment: Environment) -> None:
    careful = environment.getattr

    def quick(obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            if attribute not in _DICT:
                try:
                    return obj[attribute]
                except KeyError:
                    return environment.undefined(obj=obj, name=attribute)
        elif attribute in _SAFE.get(kind, ()):
            return getattr(obj, attribute)
        return careful(obj, attribute)

    # On this one environment, which belongs to this one template.
    environment.getattr = quick  # type: ignore[method-assign]
