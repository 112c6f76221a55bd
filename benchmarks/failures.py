"""How well are failures classified? Labelled texts, unseen texts, and logs of eight ranks.

    ./dev bench failures [--texts FOLDER] [--json]

    given      labelled program output; the rules were written without it
    left out   the same, with the rule that decides a text taken away: what else in the table knows
    unseen     texts from public threads, gathered and labelled after the rules were frozen, five
               times. `batch N, frozen` is the score then. Rules were added after each batch for
               the kinds that were missing, so today's score on a batch is no estimate for the next
               text; the frozen one of the last batch is, for texts that are found as it was
    ranks      200 logs: one rank's failure under seven ranks of cascades

The given texts are looked for in `shared/data/failures` beside the project.

Beside them, the deterministic part of nvidia-resiliency-ext's restart agent, where it can be
imported. The wheel for Python 3.11 on PyPI (0.4.1) has none; a checkout on PYTHONPATH has, with
httpx. Its classes are wider than our categories, so it is right where any class that it names,
of the primary or of another failure, may mean the category (`PEER`).
"""

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _table import NOT_INSTALLED, Bar, Column, Report, Sheet, options

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "failures"))
from rank_logs import rank_logs

from torchett.failures import UNKNOWN, Rule, Verdict, classify, shipped_rules
from torchett.failures.vocabulary import domain_of_category

UNSEEN = Path(__file__).parents[1] / "tests" / "failures" / "unseen.jsonl"
# Measured when the rules were frozen, before anything was added for these texts: right category,
# right domain and confidently wrong, of so many. Since batch 3 a domain is said without a category.
FROZEN = {
    1: (58, 62, 8, 71), 2: (24, 24, 2, 37), 3: (56, 59, 7, 75), 4: (28, 33, 6, 39),
    5: (26, 31, 3, 33),
}  # fmt: skip
# What each failure class of the peer may mean.
PEER = {
    "gpu_hardware_fault": "gpu_ecc gpu_nvlink gpu_fell_off_bus gpu_driver_fault gpu_unavailable",
    "peer_gpu_memory_access_failure": "gpu_nvlink",
    "infra_policy_event": "node_failure preemption requeue k8s_eviction",
    "time_limit": "time_limit",
    "nan_or_inf": "nan_loss",
    "cuda_oom": "cuda_oom",
    "filesystem_permission_denied": "permission_denied",
    "observed_distributed_operation_timeout": "nccl_timeout",
    "nccl_cascade": "nccl_remote_peer",
    "observed_exception": "user_code_exception import_error",
}
Case = dict[str, Any]


def texts(path: Path) -> list[Case]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def given_folder(asked: Path | None) -> Path | None:
    """Where the given texts are; None if they are not on this machine."""
    parents = Path(__file__).resolve().parents
    places = [asked] if asked else [up / "shared" / "data" / "failures" for up in parents]
    return next((place for place in places if (place / "excerpts.jsonl").exists()), None)


def score(name: str, cases: Sequence[Case], said: Callable[[Case], Verdict]) -> dict[str, Any]:
    """Shares of right categories, right domains, unknown and confidently wrong answers."""
    found = [(case["category"], said(case)) for case in cases]
    domains = [domain_of_category(right) == answer.domain for right, answer in found]
    wrong = [right for right, answer in found if answer.category not in (right, UNKNOWN)]
    return {
        "texts": name,
        "n": len(found),
        "category": sum(right == answer.category for right, answer in found) / len(found),
        "domain": sum(domains) / len(found),
        "unknown": sum(answer.category == UNKNOWN for _, answer in found) / len(found),
        "wrong": len(wrong) / len(found),
    }


def whole_table(case: Case) -> Verdict:
    return classify(case["text"])


def without_its_rule(case: Case) -> Verdict:
    """The verdict when the rule that decides the text is taken out of the table."""
    rules: tuple[Rule, ...] = shipped_rules()
    evidence = classify(case["text"]).evidence
    left = tuple(rule for rule in rules if evidence is None or rule.name != evidence.rule.name)
    return classify(case["text"], rules=left)


def peer_row(cases: Sequence[Case]) -> dict[str, Any]:
    """The share of texts in which the peer's deterministic part names a class that may be right."""
    name = "nvidia-resiliency-ext, all texts"
    try:
        from nvidia_resiliency_ext.attribution.restart_agent import cli
    except ImportError:
        return {"texts": name, "error": NOT_INSTALLED}
    hits = 0
    with tempfile.TemporaryDirectory() as folder:
        log, result = Path(folder) / "job.log", Path(folder) / "result.json"
        for case in cases:
            log.write_text(case["text"] + "\n")
            with contextlib.redirect_stdout(io.StringIO()):
                cli.main([str(log), "--disable-l1", "--result-json", str(result)])
            said = json.loads(result.read_text())
            failures = [said["primary_failure"], *said["secondary_failures"], *said["cascades"]]
            classes = {one["failure_class"] for one in failures if one}
            may_be = {word for one in classes for word in PEER.get(one, UNKNOWN).split()}
            hits += case["category"] in (may_be or {UNKNOWN})
    return {"texts": name, "n": len(cases), "category": hits / len(cases)}


def frozen_row(name: str, batches: Sequence[int]) -> dict[str, Any]:
    counts = zip(*(FROZEN[batch] for batch in batches), strict=True)
    category, domain, wrong, n = (sum(part) for part in counts)
    return {"texts": name, "n": n, "category": category / n, "domain": domain / n,
            "wrong": wrong / n}  # fmt: skip


def on_ranks(cases: Sequence[Case], count: int) -> dict[str, Any]:
    logs = list(rank_logs(cases, count))
    verdicts = [classify(log.text) for log in logs]
    pairs = list(zip(verdicts, logs, strict=True))
    return {
        "logs": count,
        "rank": sum(verdict.initiating_ranks == [log.rank] for verdict, log in pairs) / count,
        "category": sum(verdict.category == log.category for verdict, log in pairs) / count,
    }


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--texts", type=Path, help="folder with excerpts.jsonl")
    args = parser.parse_args()
    unseen, folder = texts(UNSEEN), given_folder(args.texts)
    given = texts(folder / "excerpts.jsonl") if folder else []
    rows = [frozen_row(f"batch {batch}, frozen", [batch]) for batch in FROZEN]
    rows.append(score("batches 1 to 5, rules now", unseen, whole_table))
    if given:
        rows.insert(0, score("given", given, whole_table))
        rows.append(score("given, its rule left out", given, without_its_rule))
    rows.append(peer_row([*given, *unseen]))
    ranks = on_ranks([*given, *unseen], 40 if args.quick else 200)

    report = Report("failures", facts={"rules": f"{len(shipped_rules())} rules"})
    shares = [Column(key, key, percent) for key in ("category", "domain", "unknown", "wrong")]
    columns = [Column("texts", "texts"), Column("n", "n"), *shares]
    report.sheets.append(Sheet("right answers", columns, rows, "wrong: another than unknown"))
    report.sheets.append(
        Sheet("logs of eight ranks", [Column("logs", "logs", str), Column("rank", "rank", percent),
              Column("category", "category", percent)], [ranks])
    )  # fmt: skip
    frozen = frozen_row("", [max(FROZEN)])
    if given:
        right = rows[0]["category"]
        report.bars.append(Bar("given texts", "≥ 95% category", percent(right), right >= 0.95))
    report.bars += [
        Bar("last batch, frozen", "≥ 75% category", percent(frozen["category"]),
            frozen["category"] >= 0.75),
        Bar("last batch, frozen", "≥ 90% domain", percent(frozen["domain"]),
            frozen["domain"] >= 0.9),
        Bar("last batch, frozen", "≤ 10% wrong", percent(frozen["wrong"]), frozen["wrong"] <= 0.1),
        Bar("initiating rank", "≥ 95%", percent(ranks["rank"]), ranks["rank"] >= 0.95),
    ]  # fmt: skip
    report.show(args.json)


if __name__ == "__main__":
    main()
