"""The evidence of one life: what counts, and what only follows from it."""

from pathlib import Path

from torchett.failures.rules import shipped_rules
from torchett.model.restarts import LifeEnd
from torchett.restarts.gather import gather

CLOSING = "W1120 00:11:29.8 13403 torch/distributed/elastic/multiprocessing/api.py:1028] "
FAILED = "E1120 00:11:29.9 13403 torch/distributed/elastic/multiprocessing/api.py:1002] "


def found_in(tmp_path: Path, text: str, exits: dict[int, str]) -> tuple[str, int | None]:
    end = LifeEnd(attempt=0, restart=0, limit=1, exits=exits, by="agent", node=0)
    printed = [("job.log", text, 0)]
    found = gather(tmp_path, end, tuple(shipped_rules()), printed=printed, killed_for_memory=0)
    return found.category, found.rank


def test_a_killed_rank_is_no_preemption_because_the_agent_then_stops_its_peers(
    tmp_path: Path,
) -> None:
    """What the agent prints about that lies in the job's own output, as under Slurm."""
    text = (
        f"{CLOSING}Sending process 14468 closing signal SIGTERM\n"
        f"{FAILED}failed (exitcode: -9) local_rank: 1 (pid: 14470) of binary: python\n"
    )
    assert found_in(tmp_path, text, {1: "SIGKILL"}) == ("unknown", 1)


def test_a_signal_that_the_agent_received_is_the_schedulers(tmp_path: Path) -> None:
    text = f"{CLOSING}Received Signals.SIGTERM death signal, shutting down workers\n"
    assert found_in(tmp_path, text, {1: "SIGTERM"})[0] == "external_sigterm"
