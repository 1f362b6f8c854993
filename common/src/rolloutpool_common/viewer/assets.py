"""The files of the viewer, and the policy under which a browser may run them.

`pages/` holds the page, its style and its modules, as a browser reads them. `pages/vendor/` holds what was copied in
from elsewhere; `vendored.json` there records package, release, licence and the hash of each file.
"""

from importlib.resources import files

PAGE = "index.html"
"""The file that a browser opens; it loads the others by relative paths."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""Content security policy: no foreign host, nothing inline, and no text becomes markup."""
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def viewer_files() -> dict[str, tuple[bytes, str]]:
    """Reads the files."""
    pages = files("rolloutpool_common.viewer").joinpath("pages")
    found = {}
    for folder, prefix in ((pages, ""), (pages.joinpath("vendor"), "vendor/")):
        for file in folder.iterdir():
            kind = _KINDS.get(file.name.rpartition(".")[2])
            if kind is not None:
                found[prefix + file.name] = (file.read_bytes(), kind)
    return dict(sorted(found.items()))
