"""Loads a tokenizer by name, or says why it cannot be trusted.

For some directories the class that transformers selects gives wrong ids without any error. So:

1. The automatic class is loaded. Where it needs a config.json that is not there, this step is left out.
2. It encodes a list of probes, and so does the directory's own tokenizer.json. If all ids agree, it is used.
3. Otherwise the generic class is loaded and compared in the same way. If it differs too, loading fails.

A repository's own code runs only where the caller allows it, and nothing ever asks on stdin. Caches, offline mode and
mirrors are those of huggingface_hub, set by its environment variables.
"""

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rolloutpool_common.rendering.doubts import Doubts
from rolloutpool_common.rendering.errors import RenderTooCostly, TemplateMissing, TokenizerLoadError
from rolloutpool_common.rendering.render_budget import SECONDS
from rolloutpool_common.rendering.tokenizer import ChatTokenizer, LoadedTokenizer
from rolloutpool_common.rendering.transformers_compat import backend_of, repository_file
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_common.tokens.entries import TokenizerFingerprint

_log = logging.getLogger(__name__)

TINY = "rolloutpool/tiny"
"""The tokenizer that comes with this package."""

_PROBES = (
    "Hello, world!",
    " two  spaces and\ttab",
    "3.14159 1000000 2024-07-26",
    "naïve café Ångström",
    "e\u0301 decomposed",
    "漢字とかな 한국어",
    "🙂👩\u200d🚀",
    "line\n\nbreaks\r\n",
    '{"name": "add", "arguments": {"a": 15}}',
    "def f(x):\n    return x**2",
    "",
)


def load_tokenizer(
    name: str,
    revision: str | None = None,
    *,
    trust_remote_code: bool = False,
    missing_template: str | None = None,
    render_seconds: float = SECONDS,
    doubts: Doubts | None = None,
) -> ChatTokenizer:
    """Loads a tokenizer with its chat template, which takes seconds.

    Args:
        name: Of a hub (`Qwen/Qwen3-8B`), a directory, or `rolloutpool/tiny`, which comes with the package. Workers load
            the same name (`tokenizer_name`); a relative directory from the folder in which they were started.
        revision: Of the hub: a branch, tag or commit.
        trust_remote_code: Whether the repository's own code may run in this process.
        missing_template: The chat template of a tokenizer that has none.
        render_seconds: The CPU that one render may take.
        doubts: Which short cuts are not taken; a `TokenizerCache` shares them.

    Raises:
        TokenizerLoadError: It cannot be used; the message says why.
    """
    source = str(TINY_TOKENIZER) if name == TINY else name
    directory = Path(source).expanduser()
    there = directory.is_dir()
    if not there and is_path(source):
        raise TokenizerLoadError(name, "there is no such directory on this machine.")
    where = str(directory) if there else source
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        path = repository_file(where, "tokenizer.json", revision)
        chat, backend = _agreeing(name, where, path, options)
    except TokenizerLoadError:
        raise
    except Exception as error:  # whatever a foreign repository makes transformers raise
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        # What the hub's client says names an address, where the caller may have meant a directory.
        told = reason if there else f"there is no such directory on this machine, and no model of a hub ({reason})"
        raise TokenizerLoadError(name, told) from error
    if not chat.chat_template and missing_template is not None:
        chat.chat_template = missing_template
    if not chat.chat_template:
        raise TemplateMissing(name, "it has no chat template, so there is nothing to render messages with.")
    fingerprint = _fingerprint(path.read_bytes() if path else backend.to_str().encode(), chat.chat_template)
    loaded = LoadedTokenizer(name, revision, fingerprint, backend, chat, _stop_ids(where, revision))
    try:
        return ChatTokenizer(loaded, render_seconds, doubts)
    except RenderTooCostly as error:
        raise TokenizerLoadError(name, error.message) from None


def is_path(name: str) -> bool:
    """Whether a name cannot be one of the hub, which are `name` or `owner/name`."""
    return name.startswith(("/", ".", "~")) or "\\" in name or name.count("/") > 1 or ".." in name.split("/")


def _fingerprint(tokenizer: bytes, templates: str | dict[str, str]) -> TokenizerFingerprint:
    # A tokenizer may have several templates by name. Sorted, so that the hash does not depend on their order.
    text = "\0".join(f"{k}\0{templates[k]}" for k in sorted(templates)) if isinstance(templates, dict) else templates
    return TokenizerFingerprint(
        tokenizer_sha256=hashlib.sha256(tokenizer).hexdigest(),
        template_sha256=hashlib.sha256(text.encode()).hexdigest(),
        transformers_version=transformers.__version__,
    )


def _stop_ids(where: str, revision: str | None) -> tuple[int, ...]:
    """The ids that the model itself stops at, by its generation_config.json; none where that cannot be read."""
    try:
        found = repository_file(where, "generation_config.json", revision)
        ids = json.loads(found.read_text(encoding="utf-8")).get("eos_token_id") if found else None
    except (OSError, ValueError, AttributeError):
        return ()
    return tuple(i for i in (ids if isinstance(ids, list) else [ids]) if isinstance(i, int))


def _agreeing(
    name: str, where: str, path: Path | None, options: dict[str, Any]
) -> tuple[PreTrainedTokenizerBase, Tokenizer]:
    """A tokenizer of transformers that encodes as tokenizer.json does, and its backend."""
    if path is None:
        chat: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(where, **options)
        backend = backend_of(chat)
        if backend is None:
            raise TokenizerLoadError(name, "it is implemented in Python only; a tokenizer.json is needed.")
        return chat, backend
    reference = Tokenizer.from_file(str(path))
    difference = None
    try:
        chat = AutoTokenizer.from_pretrained(where, **options)
    except OSError:
        # The automatic class reads the model's config.json, and asks the hub for it where only the tokenizer's files
        # are in the cache. The generic class needs the tokenizer's files alone.
        _log.info("tokenizer %s: no config.json can be read; the generic class is used", name)
    else:
        backend = backend_of(chat)
        difference = _first_difference(reference, backend)
        if backend is not None and difference is None:
            return chat, backend
    chat = PreTrainedTokenizerFast.from_pretrained(where, **options)
    generic_difference = _first_difference(reference, chat.backend_tokenizer)
    if generic_difference is None:
        return chat, chat.backend_tokenizer
    raise TokenizerLoadError(
        name,
        f"transformers {transformers.__version__} encodes the probe {difference or generic_difference!r} otherwise "
        "than the tokenizer.json beside it, so any ids would be a guess. Mend the directory's tokenizer_config.json, "
        "or use another version.",
    )


def _first_difference(reference: Tokenizer, backend: Tokenizer | None) -> str | None:
    # Each added token too, between letters: what is done to the text next to it is compared as well.
    probes = [*_PROBES, *(f"a{token.content}b" for token in reference.get_added_tokens_decoder().values())]
    if backend is None:
        return probes[0]
    ours = reference.encode_batch(probes, add_special_tokens=False)
    theirs = backend.encode_batch(probes, add_special_tokens=False)
    return next((p for p, a, b in zip(probes, ours, theirs, strict=True) if a.ids != b.ids), None)
