"""`python -m deploy.monitoring.dashboard`: writes grafana.json, the pool's dashboard, with grafana-foundation-sdk.

`panels.py` says what is on it. `make dashboard` runs this in an environment of its own, and `make test-monitoring`
checks that the file is what it writes (`--check`), and asks a real Prometheus each expression.
"""

import sys
from pathlib import Path

from deploy.monitoring.panels import ROWS, Panel
from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

FILE = Path(__file__).with_name("grafana.json")


def build() -> str:
    """Returns the dashboard's JSON."""
    made = (
        dashboard.Dashboard("rolloutpool")
        .uid("rolloutpool")
        .description("Every metric is explained in docs/operations.md")
        .tags(["rolloutpool"])
        .refresh("30s")
        .time("now-1h", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("job")
            .label("Pool")
            .datasource(DataSourceRef(type_val="prometheus", uid="${datasource}"))
            .query("label_values(rolloutpool_redis_up, job)")
        )
    )
    for row in ROWS:
        made = made.with_row(dashboard.Row(row.question))
        for panel in row.panels:
            made = made.with_panel(_panel(panel))
    written: str = JSONEncoder(sort_keys=True, indent=1).encode(made.build())
    return f"{written}\n"


def _panel(panel: Panel) -> stat.Panel | timeseries.Panel:
    made: stat.Panel | timeseries.Panel
    if panel.is_stat:
        made = stat.Panel().height(4).span(6)
    else:
        made = timeseries.Panel().height(7).span(8).min(0).fill_opacity(8)
        made = made.legend(common.VizLegendOptions().show_legend(True))
    made = made.title(panel.title).description(panel.about).unit(panel.unit)
    made = made.datasource(DataSourceRef(type_val="prometheus", uid="${datasource}"))
    for ask in panel.asks:
        made = made.with_target(prometheus.Dataquery().expr(ask.expr).legend_format(ask.legend))
    return made


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if FILE.read_text() == build() else f"{FILE.name} is not what this program writes: make dashboard")
    FILE.write_text(build())
