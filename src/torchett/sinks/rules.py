"""Rules for Prometheus and a dashboard for Grafana, made from one list of expressions.

The metrics are those at /metrics of `ett serve --fleet`: rank-seconds of the last day by class.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

_CLASS: Final = "team, model"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A series that Prometheus computes and stores."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alert: a condition that must be true for `lasting`."""

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart or number of the dashboard."""

    title: str
    expression: str
    legend: str = ""
    unit: str = "percentunit"
    kind: str = "timeseries"
    stacked: bool = False
    width: int = 12


_DAY = "torchett_fleet_rank_seconds_1d"
RECORDED: Final = (
    Recorded(
        "torchett:ett_ratio:1d",
        f'sum by ({_CLASS}) ({_DAY}{{group="effective"}}) / sum by ({_CLASS}) ({_DAY})',
    ),
    Recorded("torchett:fleet_ett_ratio:1d", f'sum({_DAY}{{group="effective"}}) / sum({_DAY})'),
    Recorded("torchett:group_ratio:1d", f"sum by (group) ({_DAY}) / scalar(sum({_DAY}))"),
)
ALARMS: Final = (
    Alarm(
        "TorchettRegression",
        'torchett_alerts{rule="regression"} > 0',
        "0m",
        "page",
        "{{ $value }} classes of jobs train less than they used to: see the Alerts page.",
    ),
    Alarm(
        "TorchettEffectiveTimeFell",
        "torchett:ett_ratio:1d < torchett:ett_ratio:1d offset 7d - 0.05",
        "1h",
        "warn",
        "Effective time of {{ $labels.team }} {{ $labels.model }} is 5 points below last week's.",
    ),
    Alarm(
        "TorchettJobSilent",
        "time() - torchett_job_last_seen_timestamp_seconds > 900",
        "5m",
        "page",
        "{{ $labels.ett_job }} has reported nothing for 15 minutes.",
    ),
    Alarm(
        "TorchettNotDurable",
        "torchett_job_at_risk_seconds / torchett_job_ranks > 7200",
        "5m",
        "page",
        "{{ $labels.ett_job }} has two hours of training that no durable checkpoint holds.",
    ),
)
_MINE: Final = '{team=~"$team",model=~"$model"}'
_EFFECTIVE: Final = '{team=~"$team",model=~"$model",group="effective"}'
PANELS: Final = (
    Panel("Effective time", f"sum({_DAY}{_EFFECTIVE}) / sum({_DAY}{_MINE})", kind="stat", width=6),
    Panel("Time to Start, median", f"max(torchett_fleet_time_to_start_seconds{_MINE})",
          unit="s", kind="stat", width=6),
    Panel("Time to Recover, mean", f"max(torchett_fleet_time_to_recover_seconds{_MINE})",
          unit="s", kind="stat", width=6),
    Panel("Open alerts", "sum(torchett_alerts) or vector(0)", unit="short", kind="stat", width=6),
    Panel("Where the time went", f"sum by (group) ({_DAY}{_MINE}) / scalar(sum({_DAY}{_MINE}))",
          "{{group}}", stacked=True, width=24),
    Panel("Effective time by class", "torchett:ett_ratio:1d" + _MINE, "{{team}} {{model}}"),
    Panel("Largest losses by account",
          'topk(8, sum by (account) (torchett_fleet_rank_seconds_1d{team=~"$team",model=~"$model",'
          'group!="effective"}))', "{{account}}", unit="s"),
    Panel("Failures of the last day", "sum by (cause) (torchett_fleet_failures_1d)", "{{cause}}",
          unit="short"),
    Panel("Live jobs: effective time", "torchett_job_ett_ratio", "{{ett_job}}"),
)  # fmt: skip


def rules_yaml(every: str = "1m") -> str:
    """The rules file; JSON strings are YAML strings."""
    lines = ["groups:", "- name: torchett-recorded", f"  interval: {every}", "  rules:"]
    for one in RECORDED:
        lines += [f"  - record: {one.name}", f"    expr: {json.dumps(one.expression)}"]
    lines += ["- name: torchett-alerts", f"  interval: {every}", "  rules:"]
    for alarm in ALARMS:
        lines += [
            f"  - alert: {alarm.name}",
            f"    expr: {json.dumps(alarm.expression)}",
            f"    for: {alarm.lasting}",
            "    labels:",
            f"      severity: {alarm.severity}",
            "    annotations:",
            f"      summary: {json.dumps(alarm.summary)}",
        ]
    return "\n".join(lines) + "\n"


def dashboard() -> dict[str, Any]:
    """The dashboard for Grafana's import (schema 39), where the data source is chosen."""
    panels: list[dict[str, Any]] = []
    x, y = 0, 0
    for number, panel in enumerate(PANELS, 1):
        high = 4 if panel.kind == "stat" else 8
        if x + panel.width > 24:
            x, y = 0, y + (4 if panels and panels[-1]["type"] == "stat" else 8)
        panels.append(_panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": high}))
        x += panel.width
    return {
        "title": "torchett: effective training time",
        "uid": "torchett-fleet",
        "schemaVersion": 39,
        "tags": ["torchett"],
        "time": {"from": "now-7d", "to": "now"},
        "refresh": "1m",
        "templating": {"list": [_datasource(), _variable("team"), _variable("model")]},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    custom: dict[str, Any] = {}
    if panel.kind == "timeseries":
        custom = {"fillOpacity": 80 if panel.stacked else 0, "lineWidth": 1}
        if panel.stacked:
            custom["stacking"] = {"mode": "normal"}
    return {
        "id": number,
        "title": panel.title,
        "type": panel.kind,
        "gridPos": place,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "custom": custom},
            "overrides": _colours() if panel.stacked else [],
        },
        "targets": [{"refId": "A", "expr": panel.expression, "legendFormat": panel.legend}],
    }


def _colours() -> list[dict[str, Any]]:
    """The colours of groups, as on all pages."""
    from torchett.model.accounts import GROUP_COLOURS

    return [
        {
            "matcher": {"id": "byName", "options": group},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for group, colour in GROUP_COLOURS.items()
    ]


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus"}


def _variable(label: str) -> dict[str, Any]:
    return {
        "name": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": f"label_values({_DAY}, {label})",
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }
