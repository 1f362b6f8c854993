"""Renders the Helm chart with values of yours and holds it to Kubernetes' schemas: `make chart VALUES=my.yaml`.

It prints what it renders. Exit codes: 0 all versions of Kubernetes take it, 1 the chart or one of them does not.
`tests/charts` renders with it too. It runs in build/chart, where Helm's own engine is.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[1] / "deploy" / "helm"
VERSIONS = ("1.29", "1.33", "1.37")
Document = dict[str, Any]


def render(values: Document) -> tuple[list[Document], str]:
    """Renders the chart; returns its documents, and what Helm prints after an install.

    Raises:
        HelmError: The chart refuses the values.
    """
    import helm_python

    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        texts = chart.render(values, name="pool", namespace="rl")
    (notes,) = [texts.pop(name) for name in list(texts) if name.endswith("NOTES.txt")]
    return [one for text in texts.values() for one in yaml.safe_load_all(text) if one], notes.strip()


def hold_to_kubernetes(documents: Iterable[Document], version: str) -> None:
    """Raises kubernetes-validate's ValidationError for what this version does not take."""
    import kubernetes_validate

    for document in documents:
        # KEDA's kind is none of Kubernetes'.
        if document["kind"] != "ScaledObject":
            kubernetes_validate.validate(document, version, strict=True)


def main(path: str) -> int:
    """Renders the chart with the values of a file."""
    from helm_python import HelmError
    from kubernetes_validate import ValidationError

    try:
        documents, notes = render(yaml.safe_load(Path(path).read_text()) or {})
        print(yaml.safe_dump_all(documents, sort_keys=False), end="")
        for version in VERSIONS:
            hold_to_kubernetes(documents, version)
    except (HelmError, ValidationError, OSError, yaml.YAMLError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    print(f"{notes}\n{path}: Kubernetes {', '.join(VERSIONS)} take it", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
