"""A fleet as metrics for Prometheus: the last day by class, failures, alerts, and live jobs."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from torchett.fleet import Fleet
from torchett.fleet.detector.alerts import Alerts
from torchett.serve.fleet.source import FleetSource, Row
from torchett.sinks.metrics import Metric

_MOST_CLASSES = 200  # classes and live jobs of which each is a series
_MOST_JOBS = 500
_FRESH_S = 30.0
_CLASS = "coalesce(team, '') AS team, coalesce(model, '') AS model"


def fleet_metrics(source: FleetSource) -> list[Metric]:
    """All of them, at most half a minute old."""
    now = datetime.fromtimestamp(source.clock(), UTC).replace(tzinfo=None, second=0, microsecond=0)
    day = now - timedelta(days=1)
    spent = source.rows(
        f"SELECT {_CLASS}, account_group AS g, CASE WHEN account_group = 'recover' THEN 'recovery'"
        " ELSE account END AS account, sum(ns)::DOUBLE / 1e9 AS s FROM hours"
        f" WHERE hour >= ? GROUP BY ALL ORDER BY s DESC LIMIT {_MOST_CLASSES * 30}",
        [day],
        fresh_s=_FRESH_S,
    )
    times = source.rows(
        f"SELECT {_CLASS}, median(time_to_start_ns) / 1e9 AS tts,"
        " sum(time_to_recover_ns)::DOUBLE / nullif(sum(recoveries), 0)::DOUBLE / 1e9 AS ttr"
        f" FROM jobs WHERE ended >= ? GROUP BY ALL LIMIT {_MOST_CLASSES}",
        [day],
        fresh_s=_FRESH_S,
    )
    failed = source.rows(
        "SELECT cause, domain, count(*) AS n FROM failures WHERE ended >= ? GROUP BY ALL"
        f" ORDER BY n DESC LIMIT {_MOST_CLASSES}",
        [day],
        fresh_s=_FRESH_S,
    )
    live = source.rows(
        "SELECT project, job, ett_percent / 100 AS ett, at_risk_ns / 1e9 AS risk, ranks, last_step,"
        " epoch(ended) AS seen FROM jobs WHERE state = 'live' ORDER BY began DESC"
        f" LIMIT {_MOST_JOBS}",
        fresh_s=_FRESH_S,
    )
    return [
        Metric(
            name="torchett_fleet_rank_seconds_1d",
            meaning="Rank-seconds of the last day, by class and account.",
            labels=("team", "model", "group", "account"),
            samples=[((r["team"], r["model"], r["g"], r["account"]), r["s"]) for r in spent],
        ),
        _by_class("time_to_start_seconds", "Median Time to Start of the last day.", times, "tts"),
        _by_class("time_to_recover_seconds", "Mean Time to Recover of the last day.", times, "ttr"),
        Metric(
            name="torchett_fleet_failures_1d",
            meaning="Attempts that failed in the last day.",
            labels=("cause", "domain"),
            samples=[((r["cause"], r["domain"]), r["n"]) for r in failed],
        ),
        _alerts(source),
        _by_job("ett_ratio", "Effective time of all time, 0 to 1.", live, "ett"),
        _by_job("at_risk_seconds", "Rank-seconds in no durable checkpoint.", live, "risk"),
        _by_job("ranks", "Ranks.", live, "ranks"),
        _by_job("last_step", "The highest step whose progress counts.", live, "last_step"),
        _by_job("last_seen_timestamp_seconds", "When the job was last heard of.", live, "seen"),
    ]


def _by_class(name: str, meaning: str, rows: Sequence[Row], key: str) -> Metric:
    return Metric(
        name=f"torchett_fleet_{name}",
        meaning=meaning,
        labels=("team", "model"),
        samples=[((r["team"], r["model"]), r[key]) for r in rows if r[key] is not None],
    )


def _by_job(name: str, meaning: str, rows: Sequence[Row], key: str) -> Metric:
    return Metric(
        name=f"torchett_job_{name}",
        meaning=meaning,
        labels=("project", "ett_job"),
        samples=[((r["project"], r["job"]), r[key]) for r in rows if r[key] is not None],
    )


def _alerts(source: FleetSource) -> Metric:
    def counted(fleet: Fleet) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {("regression", "page"): 0}
        for one in Alerts(fleet.state).open(source.clock()):
            if not one.muted:
                key = one.rule, one.severity
                found[key] = found.get(key, 0) + 1
        return found

    return Metric(
        name="torchett_alerts",
        meaning="Open alerts that are not muted.",
        labels=("rule", "severity"),
        samples=[(key, float(count)) for key, count in source.call(counted).items()],
    )
