"""The viewer's modules as one script, for a page that is one file.

A module that is not fetched cannot be imported, so the modules are put into one text:

    // a.js                               const _a = (() => {
    import { b } from "./b.js";             const { b } = _b;
    export const a = () => b + 1;           const a = () => b + 1;
                                            return { a };
                                          })();

1. Modules come in the order of their imports, so each finds what it needs. Circular imports are refused.
2. Our modules use three forms: `import { … } from "./…";`, `export const` (or class, or function) at the start of a
   line, and what was copied in ends with `export{…};`. Any other form is refused, not guessed.
"""

import re
from collections.abc import Mapping

ENTRY = "app.js"
"""The module that starts the viewer."""

_IMPORT = re.compile(r'^import \{([^}]*)\} from "(\./[^"]+)";$', re.M)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|let|class|function) (\w+))", re.M)
_EXPORT_LIST = re.compile(r"export\{([^}]*)\};?\s*$")
_BREAKING = re.compile(r"</script|<!--", re.I)
_LEFT = re.compile(r"^\s*(?:import|export)\b|\bimport\(", re.M)


class BundleError(ValueError):
    """A module uses a form of import or export that a bundle cannot carry over."""


def bundle(modules: Mapping[str, str], entry: str = ENTRY) -> str:
    """Makes one script of modules."""
    written: dict[str, str] = {}
    _add(entry, modules, written, ())
    return "\n".join(written.values())


def _add(path: str, modules: Mapping[str, str], written: dict[str, str], above: tuple[str, ...]) -> None:
    if path in written:
        return
    if path in above:
        raise BundleError(" imports ".join((*above, path)))
    if path not in modules:
        raise BundleError(f"there is no {path}")
    text = modules[path]
    for _, source in _IMPORT.findall(text):
        _add(_resolved(path, source), modules, written, (*above, path))
    written[path] = _wrapped(path, text)


def _wrapped(path: str, text: str) -> str:
    body = _IMPORT.sub(lambda found: f"const {{{_pairs(found[1], ': ')}}} = {_name(_resolved(path, found[2]))};", text)
    exported = _EXPORT.findall(body)
    body = _EXPORT.sub("", body)
    if listed := _EXPORT_LIST.search(body):
        # `a as b` exports a under the name b: in an object that is `b: a`.
        exported += [": ".join(reversed(entry.strip().split(" as "))) for entry in listed[1].split(",")]
        body = body[: listed.start()]
    if left := _LEFT.search(body):
        raise BundleError(f"{path}: a bundle cannot carry {body[left.start() :].splitlines()[0]!r}")
    if breaking := _BREAKING.search(body):
        raise BundleError(f"{path}: {breaking[0]!r} would end the script, or hide its end")
    return f"const {_name(path)} = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();"


def _pairs(names: str, between: str) -> str:
    return ", ".join(between.join(entry.split(" as ")) for entry in map(str.strip, names.split(",")) if entry)


def _resolved(path: str, source: str) -> str:
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}{source.removeprefix('./')}"


def _name(path: str) -> str:
    return "_" + re.sub(r"\W", "_", path.removesuffix(".js"))
