"""A run that grows: reading what is new comes to the same ledger as reading all of it."""

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from player import HERE, UNIT_NS, Move, facts, flight, killed, launched, player, steps_in
from trainers import environment, train

from torchett.cli.main import main
from torchett.ledger import Ledger
from torchett.record.flight.format import FRAMES, chunk
from torchett.record.flight.seal import seal
from torchett.record.recorder import Recorder
from torchett.runs.reader import RunReader

STEP: Move = ("step", 1, [("gap", 1), ("span", "recompile", [("gap", 1)])])
MOVES: tuple[Move, ...] = (
    ("times", 7, [STEP]),
    ("times", 300, [STEP, ("gap", 1)]),
    ("loop", [(1, [("gap", 2)])] * 5),
    ("span", "evaluation", [("gap", 15)]),
    ("open", 0, "checkpoint_blocked", False),
    ("close", 0),
    ("open", 1, "publish", True),
    ("close", 1),
    ("saved", 0),
    ("saved", 3),
    ("gap", 4),
    ("jump", 2),
)


def hints(ledger: Ledger) -> dict[str, Any]:
    return {**facts(ledger), "at_risk": ledger.at_risk_ns, "losses": ledger.losses}


@pytest.mark.parametrize("seed", range(4))
def test_polling_after_every_move_is_reading_once(tmp_path: Path, seed: int) -> None:
    """
    s s │poll s ├─ │poll ─┤ s │poll ckpt s …        two ranks, then a second attempt
    """
    rng = random.Random(seed)
    run = tmp_path / "job"
    reader: RunReader | None = None
    log = launched(run, {"event": "start", "attempt": 0, "t_ns": 0, "ranks": 2})
    begin = 0
    for number in range(2):
        with pytest.MonkeyPatch.context() as patch:
            ranks = [player(run, patch, rank=r, ranks=2, attempt=number) for r in range(2)]
            for played in ranks:
                played.clock.now_ns, played.index = begin, 40 * number
            for _ in range(25):
                played = rng.choice(ranks)
                patch.setattr("torchett.record.recorder.now_ns", played.clock)
                played.play([rng.choice(MOVES)])
                if rng.random() < 0.1:
                    played.play([("span", f"x-own_{rng.randrange(3)}", [("gap", 1)])])
                reader = (reader or RunReader(run)).poll()
                fresh = RunReader(run).poll()
                assert hints(reader.ledger()) == hints(fresh.ledger())
                assert reader.notes == fresh.notes == []
            begin = max(played.clock() for played in ranks) + UNIT_NS
            if number == 0:
                log.append({"event": "end", "attempt": 0, "t_ns": begin, "outcome": "failed"})
                log.append({"event": "start", "attempt": 1, "t_ns": begin, "ranks": 2})
            else:
                for played in ranks:
                    patch.setattr("torchett.record.recorder.now_ns", played.clock)
                    played.finish()
                    played.recorder.close({"exit_ns": played.clock()})
    assert reader is not None
    assert hints(reader.poll().ledger()) == hints(RunReader(run).poll().ledger())


def test_polling_while_a_process_writes(tmp_path: Path) -> None:
    """
    trainer  s s s s ckpt s s s ├ x-own ┤ s …  as fast as it can
    reader     poll   poll   poll   poll  …    until it has exited
    """
    script = """
import sys, torchett as ett
ett.init(job="job")
for i in ett.steps(range(60_000)):
    if i % 1000 == 999:
        with ett.blocked("checkpoint_blocked"):
            pass
        ett.checkpoint_durable(i)
    if i % 70 == 0:
        with ett.stage(f"x-own_{i % 3}"):
            pass
    if i % 10_000 == 0:
        sys.stdin.readline()
"""
    trainer = subprocess.Popen(
        [sys.executable, "-c", script], env=environment(tmp_path), stdin=subprocess.PIPE
    )
    run = tmp_path / "job"
    assert trainer.stdin is not None
    while trainer.poll() is None and not any(p.stat().st_size for p in run.glob("*/rank-0.ett")):
        pass
    reader, seen, polls = RunReader(run), 0, 0
    while trainer.poll() is None:
        ledger = reader.poll().ledger()
        steps = steps_in(reader.history().rows)
        assert steps >= seen
        assert sum(ledger.accounts.values()) == ledger.rank_ns
        assert not any("damaged" in note or "dropped" in note for note in reader.notes)
        seen, polls = steps, polls + 1
        if polls <= 6:
            trainer.stdin.write(b"\n")
            trainer.stdin.flush()
    assert trainer.returncode == 0
    last, fresh = reader.poll(), RunReader(run).poll()
    assert last.notes == fresh.notes == []
    assert steps_in(last.history().rows) == 60_000
    assert hints(last.ledger()) == hints(fresh.ledger())


def test_a_chunk_that_is_half_written_is_taken_when_it_is_whole(tmp_path: Path) -> None:
    """
    │ chunk │ chu┆ poll ┆nk │ poll
    """
    writer = flight(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        played = player(tmp_path, patch, rank=0, attempt=1)
        played.play([("times", 5, [STEP])])
        played.recorder.close({"exit_ns": played.clock()})
    (path,) = tmp_path.glob("attempt-1/*.ett")
    whole = path.read_bytes()
    head = whole.index(b"\n") + 1
    for cut in range(head, len(whole), 7):
        path.write_bytes(whole[:cut])
        reader = RunReader(tmp_path).poll()
        half = [note for note in reader.notes if "cut off" in note]
        path.write_bytes(whole)
        reader.poll()
        assert reader.notes == []
        assert hints(reader.ledger()) == hints(RunReader(tmp_path).poll().ledger())
        assert len(half) <= 1
    assert writer.path.exists()


def test_a_ring_that_is_sealed_between_two_polls(tmp_path: Path) -> None:
    """
    poll (log and ring) ─ the launcher seals the ring ─ poll (log alone)
    """
    with pytest.MonkeyPatch.context() as patch:
        played = player(tmp_path, patch, launched=True)
        played.play([("times", 400, [STEP]), ("open", 0, "evaluation", False)])
    end_ns = played.clock() + UNIT_NS
    launched(
        tmp_path,
        {"event": "start", "attempt": 0, "t_ns": 0},
        {"event": "end", "attempt": 0, "t_ns": end_ns, "outcome": "failed"},
    )
    killed()
    reader = RunReader(tmp_path).poll()
    before = reader.ledger()
    seal(next(tmp_path.glob("*/*.ett")), HERE, end_ns)
    after = reader.poll().ledger()
    assert after.accounts == RunReader(tmp_path).poll().ledger().accounts
    assert sum(after.accounts.values()) == sum(before.accounts.values())


def test_damage_in_the_middle_is_said_once(tmp_path: Path) -> None:
    """
    │ chunk │ ▒▒▒ │ poll, poll │ chunk │ poll
    """
    writer = flight(tmp_path)
    Recorder(writer).past_span("imports", 0, UNIT_NS)
    reader = RunReader(tmp_path).poll()
    with writer.path.open("ab") as file:
        file.write(b"torn bytes")
    for _ in range(2):
        reader.poll()
        assert reader.notes == [f"{writer.path}: the last 10 bytes are cut off"]
    with writer.path.open("ab") as file:
        file.write(chunk(FRAMES, b"\0" * 48, attempt=0, rank=0, reach=0))
    for _ in range(2):
        reader.poll()
        assert reader.notes == [f"{writer.path}: 10 damaged bytes skipped"]


def test_of_a_job_without_a_launcher_a_span_lasts_until_the_rank_was_last_alive(
    tmp_path: Path,
) -> None:
    """
    evaluation ├──────────── ✗ killed       the record's beat, once a second, is its last word
    """
    script = (
        "import os, signal, time\n"
        "ett.init(job='bare')\n"
        "with ett.step(0): pass\n"
        "with ett.blocked('evaluation'):\n"
        "    time.sleep(2.5)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    train(script, tmp_path)
    found = RunReader(tmp_path / "bare").poll().ledger().accounts["evaluation"] / 1e9
    assert 0.9 < found < 2.6

    train("ett.init(job='bare')", tmp_path, {"ETT_ATTEMPT": "1"})  # attempt 0 has vanished
    found = RunReader(tmp_path / "bare").poll().ledger().accounts["evaluation"] / 1e9
    assert 0.9 < found < 2.6


def test_a_job_without_a_launcher_whose_rank_is_gone_is_not_said_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import os, time\nett.init(job='bare')\ntime.sleep(0.5)\nos.kill(os.getpid(), 9)"
    train(script, tmp_path)
    later = time.time() + 100
    monkeypatch.setattr(time, "time", lambda: later)
    page = CliRunner().invoke(main, ["report", str(tmp_path / "bare")]).output
    assert "no sign of life for" in page
