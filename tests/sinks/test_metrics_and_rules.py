"""Metrics agree with the ledger, and every expression made from them parses."""

import json
from pathlib import Path

import promql_parser
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from torchett.cli.main import main
from torchett.ledger import AccountTable, History, Ledger, Rows, settle
from torchett.model import Attempt, Job, Span, Step
from torchett.sinks.metrics import job_metrics, text
from torchett.sinks.rules import ALARMS, PANELS, RECORDED, dashboard, rules_yaml

S = 1_000_000_000
EXPRESSIONS = [
    *((one.name, one.expression) for one in RECORDED),
    *((one.name, one.expression) for one in ALARMS),
    *((one.title, one.expression) for one in PANELS),
]


@pytest.fixture
def ledger() -> Ledger:
    accounts = AccountTable()
    values = [
        Span(rank=0, account="imports", t0_ns=0, t1_ns=5 * S),
        *(Step(rank=0, index=i, t0_ns=(5 + i) * S, t1_ns=(6 + i) * S) for i in range(10)),
    ]
    attempts = (Attempt(number=0, start_ns=0, ranks=1, end_ns=20 * S, outcome="success"),)
    job = Job(name='a"b\nc', ranks=1, attempts=attempts)
    rows = Rows.from_values(values, accounts)
    return settle(History(job=job, rows=rows, accounts=accounts))


def test_the_text_sums_to_the_ledger(ledger: Ledger) -> None:
    found = {
        family.name: family.samples
        for family in text_string_to_metric_families(
            text(job_metrics({ledger.job: ledger})).decode()
        )
    }
    seconds = found["torchett_job_rank_seconds"]
    assert sum(one.value for one in seconds) == pytest.approx(ledger.rank_ns / 1e9)
    by_account = {one.labels["account"]: one.value for one in seconds}
    assert by_account["imports"] == 5
    assert {one.labels["ett_job"] for one in seconds} == {'a"b\nc'}
    (ratio,) = found["torchett_job_ett_ratio"]
    assert ratio.value == pytest.approx(ledger.ett_percent / 100)
    assert found["torchett_job_time_to_recover_seconds"] == []


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS)
def test_an_expression_parses(name: str, expression: str) -> None:
    promql_parser.parse(expression.replace("$team", ".*").replace("$model", ".*"))


def test_rules_and_dashboard_by_command(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    said = CliRunner().invoke(main, ["fleet", "rules", "--every", "30s"])
    groups = yaml.safe_load(said.stdout)["groups"]
    assert [len(group["rules"]) for group in groups] == [len(RECORDED), len(ALARMS)]
    assert groups[1]["rules"][0]["expr"] == ALARMS[0].expression
    assert said.stdout == rules_yaml("30s")
    assert CliRunner().invoke(main, ["fleet", "rules", "--every", "x"]).exit_code == 2
    made = json.loads(CliRunner().invoke(main, ["fleet", "dashboard"]).stdout)
    assert made == dashboard()
    places = [panel["gridPos"] for panel in made["panels"]]
    for i, a in enumerate(places):
        for b in places[:i]:
            apart_x = a["x"] >= b["x"] + b["w"] or b["x"] >= a["x"] + a["w"]
            apart_y = a["y"] >= b["y"] + b["h"] or b["y"] >= a["y"] + a["h"]
            assert apart_x or apart_y
