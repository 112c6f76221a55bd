"""Every page has its data beside it, shows hostile names as text, and runs no foreign script."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from torchett.ledger import AccountTable, History, Rows
from torchett.ledger.history import settle
from torchett.model import Attempt, Job, Span, Step
from torchett.runs.imported import write_run
from torchett.serve.app import make_app
from torchett.serve.compare import compare

S = 1_000_000_000
HOSTILE = '<img src=x onerror=alert(1)>\x1b[31m"&'


def history(name: str, cause: str = "nccl_timeout", ranks: int = 2, slow: float = 1.0) -> History:
    """Two attempts: the first fails after ten steps, the second trains twenty."""
    accounts = AccountTable()
    values: list[Span | Step] = []
    for rank in range(ranks):
        values.append(Span(rank=rank, account="imports", t0_ns=0, t1_ns=5 * S))
        values.append(Span(attempt=1, rank=rank, account="pt2_compile", t0_ns=40 * S, t1_ns=44 * S))
        values += [
            Step(rank=rank, index=i, t0_ns=(5 + i) * S, t1_ns=(6 + i) * S) for i in range(10)
        ]
        for i in range(20):
            begin = round((44 + i * slow) * S)
            end = round((44 + (i + 1) * slow) * S)
            values.append(Step(attempt=1, rank=rank, index=i, t0_ns=begin, t1_ns=end))
    attempts = (
        Attempt(number=0, start_ns=0, ranks=ranks, end_ns=30 * S, outcome="failed", cause=cause),
        Attempt(number=1, start_ns=35 * S, ranks=ranks, end_ns=90 * S, outcome="success"),
    )
    job = Job(name=name, ranks=ranks, attempts=attempts)
    rows = Rows.from_values(values, accounts)
    return History(job=job, rows=rows, accounts=accounts, epoch_s=1.79e9)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    write_run(history("gpt"), tmp_path / "gpt")
    write_run(history("dlrm", slow=2.0), tmp_path / "dlrm")
    write_run(history(HOSTILE, cause=HOSTILE * 40_000), tmp_path / "hostile")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "attempts-0.jsonl").write_bytes(b"\xff\xfe not JSON")
    with TestClient(make_app(tmp_path), raise_server_exceptions=True) as made:
        yield made


PAGES = ["/jobs", "/jobs?q=gpt&sort=-ett", "/job/gpt", "/job/hostile", "/compare?a=gpt&b=dlrm"]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_and_its_twin(client: TestClient, path: str) -> None:
    page = client.get(path)
    assert page.status_code == 200
    assert len(page.content) < 200_000
    before, mark, query = path.partition("?")
    twin = client.get(f"{before}.json{mark}{query}")
    assert twin.headers["content-type"] == "application/json"
    assert twin.json()


@pytest.mark.parametrize("path", [*PAGES, "/nowhere", "/static/page.js"])
def test_nothing_foreign_runs(client: TestClient, path: str) -> None:
    page = client.get(path)
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    if "text/html" in page.headers["content-type"]:
        assert not re.search(
            r"<script(?![^>]*\bsrc=\"/static/)|<[^>]* (style|on\w+)=|<img", page.text
        )
        assert "\x1b" not in page.text


def test_the_job_page_says_what_the_report_says(client: TestClient, tmp_path: Path) -> None:
    from torchett.runs.reader import RunReader

    ledger = RunReader(tmp_path / "gpt").poll().ledger()
    data = client.get("/job/gpt.json").json()
    assert data["accounts"] == ledger.to_json()["accounts"]
    assert data["view"]["ett_percent"] == ledger.ett_percent
    assert sum(share["seconds"] for share in data["view"]["shares"]) == pytest.approx(
        ledger.rank_ns / 1e9
    )
    assert [one["cause"] for one in data["view"]["failures"]] == ["nccl_timeout"]
    page = client.get("/job/gpt").text
    assert f"<b>{ledger.ett_percent:.1f}</b>" in page


def test_jobs_are_filtered_and_sorted(client: TestClient) -> None:
    found = client.get("/jobs.json?q=dlrm").json()
    assert [row["name"] for row in found["jobs"]] == ["dlrm"]
    assert (found["found"], found["total"]) == (1, 4)
    names = [row["name"] for row in client.get("/jobs.json?sort=ett").json()["jobs"]]
    assert names.index("gpt") < names.index("dlrm")
    assert names[-1] == "broken"  # what has no figure comes last
    assert client.get("/jobs?page=99999999999&sort=%00").status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/job/none", "/job/..%2f..%2fetc", "/job/%00", f"/job/{'a' * 9000}", "/compare?a=gpt&b=none"],
)
def test_what_is_not_there_is_one_sentence(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_a_comparison_names_what_pushed(client: TestClient) -> None:
    found = client.get("/compare.json?a=dlrm&b=gpt").json()
    assert found["points"] == pytest.approx(found["b_percent"] - found["a_percent"])
    assert "less effective" in found["verdict"]


def test_jobs_of_one_name_are_told_apart_by_their_keys() -> None:
    ledger = settle(history("same"))
    found = compare(ledger, ledger, ("research/same", "prod/same"))
    assert found.verdict == "prod/same is as effective as research/same."
