"""Jobs as metrics for Prometheus, for `/metrics` and for node-exporter's textfile collector.

    torchett_job_ett_ratio{ett_job="gpt"} 0.93
    torchett_job_rank_seconds{ett_job="gpt",group="start",account="pt2_compile"} 812.5

All metrics are gauges, because a failed attempt turns effective time into unsaved time. The label
is `ett_job`, because Prometheus uses `job` itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torchett.ledger.ledger import Ledger

_LONGEST: Final = 200  # of a label's value


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One gauge: its meaning and its samples, as label values in order."""

    name: str
    meaning: str
    labels: tuple[str, ...]
    samples: Sequence[tuple[tuple[str, ...], float]]


def text(metrics: Iterable[Metric]) -> bytes:
    """The metrics in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import GaugeMetricFamily

    class Given:
        def collect(self) -> Iterable[GaugeMetricFamily]:
            for metric in metrics:
                family = GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
                for values, number in metric.samples:
                    family.add_metric([value[:_LONGEST] for value in values], number)
                yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Given())
    return generate_latest(registry)


def job_metrics(ledgers: Mapping[str, Ledger]) -> list[Metric]:
    """The metrics of jobs; the keys are their names."""
    whole = ("ett_job",)

    def one(name: str, meaning: str, values: Mapping[str, float | None]) -> Metric:
        found = [((job,), value) for job, value in values.items() if value is not None]
        return Metric(name=f"torchett_job_{name}", meaning=meaning, labels=whole, samples=found)

    every = ledgers.items()
    return [
        one("ett_ratio", "Effective time of all time, 0 to 1.",
            {job: ledger.ett_percent / 100 for job, ledger in every}),
        Metric(
            name="torchett_job_rank_seconds",
            meaning="Seconds summed over ranks, by account.",
            labels=("ett_job", "group", "account"),
            samples=[
                ((job, group, account), ns / 1e9)
                for job, ledger in every
                for group, accounts in ledger.tree.items()
                for account, ns in accounts.items()
                if ns
            ],
        ),
        one("time_to_start_seconds", "Allocation to the first progress.",
            {job: None if ledger.time_to_start_ns is None else ledger.time_to_start_ns / 1e9
             for job, ledger in every}),
        one("time_to_recover_seconds", "Mean time from the last step to the next progress.",
            {job: _mean(ledger.time_to_recover_ns) for job, ledger in every}),
        one("at_risk_seconds", "Rank-seconds of steps that no durable checkpoint holds.",
            {job: ledger.at_risk_ns / 1e9 for job, ledger in every}),
        one("last_step", "The highest step whose progress counts.",
            {job: ledger.last_step for job, ledger in every}),
        one("live", "1 while the job runs.",
            {job: float(ledger.window.live) for job, ledger in every}),
        Metric(
            name="torchett_job_failures",
            meaning="Failed attempts, by the domain of the cause: infra, scheduler or user.",
            labels=("ett_job", "domain"),
            samples=[
                ((job, domain), count)
                for job, ledger in every
                for domain, count in ledger.failures.items()
            ],
        ),
    ]  # fmt: skip


def _mean(times: Sequence[int]) -> float | None:
    return sum(times) / len(times) / 1e9 if times else None
