"""The viewer's modules become one script that means the same; what cannot be carried over is refused."""

import re

import pytest

from rolloutpool_common.viewer.assets import viewer_files
from rolloutpool_common.viewer.bundle import BundleError, bundle

FILES = {name: content.decode() for name, (content, _) in viewer_files().items() if name.endswith(".js")}


def test_each_module_is_there_once_and_after_those_that_it_imports() -> None:
    text = bundle(FILES)
    order = re.findall(r"^const (_\w+) = \(\(\) => \{$", text, re.M)
    assert sorted(order) == sorted("_" + re.sub(r"\W", "_", name.removesuffix(".js")) for name in FILES)
    assert order[-1] == "_app"
    for place, name in enumerate(order):
        body = text.partition(f"const {name} = (() => {{\n")[2].partition("\n})();")[0]
        used = set(re.findall(r"^const \{[^}]*\} = (_\w+);$", body, re.M))
        assert used <= set(order[:place])
    assert re.search(r"^\s*(import|export)\b", text, re.M) is None


def test_names_are_carried_over() -> None:
    made = bundle(
        {
            "app.js": 'import { a, b as c } from "./x/y.js";\nexport const used = a + c;\n',
            "x/y.js": 'import { h } from "./z.js";\nexport const a = 1;\nexport class D {}\n'
            "export async function f() {}\nconst own = 2;\nexport const b = own + h;",
            "x/z.js": "var q=1;export{q as h,q as default_};",
            "other.js": "never taken",
        }
    )
    assert made == (
        "const _x_z = (() => {\nvar q=1;\nreturn { h: q, default_: q };\n})();\n"
        "const _x_y = (() => {\nconst {h} = _x_z;\nconst a = 1;\nclass D {}\nasync function f() {}\n"
        "const own = 2;\nconst b = own + h;\nreturn { a, D, f, b };\n})();\n"
        "const _app = (() => {\nconst {a, b: c} = _x_y;\nconst used = a + c;\n\nreturn { used };\n})();"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('import x from "./x.js";', "cannot carry 'import x from"),
        ('import "./x.js";', "cannot carry"),
        ('import * as x from "./x.js";', "cannot carry"),
        ("export default 1;", "cannot carry 'export default"),
        ('export { a } from "./x.js";', "cannot carry"),
        ("const a = await import('./x.js');", "cannot carry"),
        ('import { a } from "./missing.js";', "there is no missing.js"),
        ('import { a } from "./app.js";', "app.js imports app.js"),
        ("const a = '</SCRIPT>';", "would end the script"),
        ("const a = '<!--';", "would end the script"),
    ],
)
def test_what_cannot_be_carried_over_is_refused(text: str, says: str) -> None:
    with pytest.raises(BundleError, match=re.escape(says)):
        bundle({"app.js": text, "x.js": "export const a = 1;"})
