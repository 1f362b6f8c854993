"""Builds the images of deploy/ with buildah, which needs no engine: `make images`.

1. Everything is kept in `build/images`, so no image of this machine's own is replaced.
2. The base that the Dockerfiles name is pulled. Where it can't be had, a stand-in of the same name is made from
   Debian's packages with mmdebstrap. It has the same Python, but not the base's own bytes, and the output says so.
3. Each Dockerfile is built: its RUN lines work in a chroot, on this machine's network.
4. The images carry the commit of the tree: as a label, and for metrics.
5. Behind a proxy that inspects TLS, SSL_CERT_FILE names the file with the proxy's certificate. It is mounted while RUN
   lines work, with settings that make pip and uv read it. A mount belongs to no layer, so no image holds any of it.

`tests/acceptance/test_built_images.py` runs what was built. This script needs only the standard library.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "images"
BUILDAH = ["buildah", "--root", str(FOLDER / "store"), "--runroot", str(FOLDER / "run")]
CHROOT = ["--isolation", "chroot", "--network", "host"]
BASE_NOTE = FOLDER / "base.txt"
"""Says what the images stand on; `make images` prints it last."""
SYSTEM_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
"""Where Debian's programs look for certificates."""


class BuildFailed(Exception):
    """An image can't be built, with what a person can do about it."""


def main() -> int:
    """Build all images; returns the exit code."""
    dockerfiles = sorted((ROOT / "deploy").glob("*.Dockerfile"))
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        if shutil.which("buildah") is None:
            raise BuildFailed("make images needs buildah. On Debian or Ubuntu: apt-get install buildah")
        (base,) = {name for path in dockerfiles for name in _bases(path)}
        BASE_NOTE.write_text(_have_base(base) + "\n")
        mounts, commit = _certificates(), _commit()
        for path in dockerfiles:
            _say(f"building {path.stem}")
            options = ["--quiet", "--pull-never", "--format", "docker", "--tag", f"rolloutpool-{path.stem}"]
            options += ["--build-arg", f"COMMIT={commit}"]
            _run([*BUILDAH, "build", *CHROOT, *mounts, *options, "--file", str(path), str(ROOT)])
        # Those of an earlier run, whose names these have now.
        _run([*BUILDAH, "rmi", "--prune"])
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 1
    _say(_output([*BUILDAH, "images"]).rstrip())
    return 0


def _bases(dockerfile: Path) -> list[str]:
    return re.findall(r"^FROM (\S+)", dockerfile.read_text(), re.MULTILINE)


def _have_base(base: str) -> str:
    """Has the base in the store; returns what it is."""
    if BASE_NOTE.exists() and _succeeds([*BUILDAH, "inspect", "--type", "image", base]):
        return BASE_NOTE.read_text().strip()
    _say(f"pulling {base}")
    pulled = subprocess.run([*BUILDAH, "pull", "--quiet", base], capture_output=True, text=True, check=False)
    if pulled.returncode == 0:
        return f"The images stand on {base}, as its registry has it."
    reason = pulled.stderr.strip().splitlines()
    _say(f"{base} can't be pulled: {reason[-1] if reason else 'no reason given'}")
    _make_stand_in(base)
    return (
        f"The images stand on a STAND-IN for {base}, made here from Debian's packages, because {base} could not be "
        "pulled. That the Dockerfiles build and their processes run is shown; that they do on the real base is not. To "
        "try it again, remove build/images."
    )


def _make_stand_in(base: str) -> None:
    """Makes an image of the base's name with the Python that its Debian release has."""
    if shutil.which("mmdebstrap") is None:
        raise BuildFailed("a stand-in for the base needs mmdebstrap. On Debian or Ubuntu: apt-get install mmdebstrap")
    _say(f"making a stand-in for {base} from Debian's packages")
    version, _, suite = base.partition(":")[2].partition("-slim-")
    archive = FOLDER / "base.tar"
    archive.unlink(missing_ok=True)
    options = ["--variant=minbase", "--include=ca-certificates,python3,python3-venv"]
    options.append('--customize-hook=ln -s python3 "$1/usr/bin/python"')
    _run(["mmdebstrap", "--quiet", *options, suite, str(archive)])
    container = _output([*BUILDAH, "from", "scratch"]).strip()
    try:
        _run([*BUILDAH, "add", "--quiet", container, str(archive), "/"])
        _run([*BUILDAH, "config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin", "--cmd", "python", container])
        found = _output([*BUILDAH, "run", *CHROOT, container, "--", "python", "--version"]).strip()
        if not found.startswith(f"Python {version}."):
            raise BuildFailed(f"{base} wants Python {version}, and Debian's {suite} has {found}")
        _run([*BUILDAH, "commit", "--quiet", container, f"localhost/{base}"])
    finally:
        _run([*BUILDAH, "rm", container])
        archive.unlink(missing_ok=True)


def _certificates() -> list[str]:
    """Mounts for RUN lines: the certificates of SSL_CERT_FILE, and settings by which pip and uv read them."""
    bundle = os.environ.get("SSL_CERT_FILE")
    if not bundle:
        return []
    pip, uv = FOLDER / "pip.conf", FOLDER / "uv.toml"
    pip.write_text(f"[global]\ncert = {SYSTEM_BUNDLE}\n")
    uv.write_text("native-tls = true\n")
    mounts = {str(Path(bundle).resolve()): SYSTEM_BUNDLE, str(pip): "/etc/pip.conf", str(uv): "/etc/uv/uv.toml"}
    return [word for source, target in mounts.items() for word in ("--volume", f"{source}:{target}:ro")]


def _commit() -> str:
    """The commit of this tree, which the images carry; `unknown` where this is no checkout."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return _output(command).strip() if shutil.which("git") and _succeeds(command) else "unknown"


def _run(command: list[str]) -> None:
    """Runs a command, whose standard output is of no interest."""
    _output(command)


def _output(command: list[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"exit code {done.returncode}: {' '.join(command)}")
    return done.stdout


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
