"""Damaged records: something is said, the rest is read, and nothing is ever made up."""

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from player import UNIT_NS, Move, flight, launched, player, ring_of

from torchett.ledger import Ledger
from torchett.model.errors import RunError
from torchett.record.clock import Anchor
from torchett.record.flight.format import BLOCK_MAGIC, LIVE_BYTES, RING, chunk
from torchett.runs.folder import find_run
from torchett.runs.reader import RunReader

BEGAN = 5_000_000_000_000
TODAY = Anchor(host="here", clock="here", wall_ns=1_790_000_000_000_000_000, mono_ns=BEGAN)
STEPS: Move = ("times", 6, [("step", 1, [("gap", 2)])])
MOVES: list[Move] = [
    ("span", "imports", [("gap", 3)]),
    STEPS,
    ("saved", 2),
    ("span", "x-mine", [("gap", 2)]),
    STEPS,
]


def record(run: Path, *, close: bool, outcome: str | None, moves: list[Move] = MOVES) -> Path:
    """A small record, by a launcher that says how it ended or without one; its log."""
    with pytest.MonkeyPatch.context() as patch:
        played = player(run, patch, anchor=TODAY, began_ns=BEGAN)
        played.clock.now_ns = BEGAN
        played.play(moves)
        if close:
            played.recorder.close({"exit_ns": played.clock()})
    if outcome:
        end_ns = played.clock() + 10 * UNIT_NS
        launched(
            run,
            {"event": "start", "attempt": 0, "t_ns": BEGAN},
            {"event": "end", "attempt": 0, "t_ns": end_ns, "outcome": outcome},
            anchor=TODAY,
        )
    (path,) = run.glob("*/*.ett")
    return path


def effective(ledger: Ledger) -> int:
    return ledger.accounts.get("effective", 0)


def look(run: Path) -> tuple[RunReader, Ledger] | None:
    """The run, or None where it is refused. Any other error fails the test."""
    try:
        reader = RunReader(run).poll()
        ledger = reader.ledger()
    except RunError:
        return None
    assert sum(ledger.accounts.values()) == ledger.rank_ns
    return reader, ledger


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("outcome", ["failed", None])
def test_a_log_cut_off_at_any_byte(tmp_path: Path, close: bool, outcome: str | None) -> None:
    """
    │ {"format":"flight/2",… │ chunk │ chu✂
    """
    path = record(tmp_path / "job", close=close, outcome=outcome)
    true = effective(RunReader(tmp_path / "job").poll().ledger())
    assert true > 0
    data, ring = path.read_bytes(), ring_of(path)
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        found = look(tmp_path / "job")
        if found is None:
            assert outcome is None
            continue
        reader, ledger = found
        assert effective(ledger) <= true, cut
        assert ledger.last_step is None or ledger.last_step <= 11
        if effective(ledger) < true and outcome:
            assert reader.notes or not ring.exists(), cut


def test_any_flipped_bit_of_the_first_line_is_said_or_harmless(tmp_path: Path) -> None:
    """
    │ {"form▒t":"flight/2","job":…,"began_ns":… │      the line that no chunk's checksum covers
    """
    path = record(tmp_path / "job", close=True, outcome=None)
    true = RunReader(tmp_path / "job").poll().ledger()
    data = path.read_bytes()
    for at in range(data.index(b"\n") + 1):
        for bit in (0, 3):  # these make another digit of a digit
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            path.write_bytes(broken)
            found = look(tmp_path / "job")
            if found is not None and not found[0].notes:
                assert found[1].accounts == true.accounts, broken[max(0, at - 20) : at + 9]


def put(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new, 1)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: b"\0" * len(data), id="zeros"),
        pytest.param(lambda data: random.Random(1).randbytes(3000), id="noise"),
        pytest.param(lambda data: b"\n" + data, id="an empty first line"),
        pytest.param(lambda data: b"{}\n" + data, id="another first line"),
        pytest.param(lambda data: b"7\n" + data, id="a number"),
        pytest.param(lambda data: b"[" * 70_000 + b"\n", id="too deep"),
        pytest.param(put(b"flight/2", b"flight/9"), id="a newer format"),
        pytest.param(put(b'"rank": 0', b'"rank": 9'), id="a rank beyond its ranks"),
        pytest.param(put(b'"rank": 0', b'"rank": -1'), id="a rank below 0"),
        pytest.param(put(b'"attempt": 0', b'"attempt": "a"'), id="a word for a number"),
        pytest.param(put(b'"began_ns": 5', b'"began_ns": 1e999, "a": 5'), id="never began"),
        pytest.param(put(b'"wall_ns": 1', b'"wall_ns": 9'), id="a clock of centuries to come"),
        pytest.param(put(b'"accounts": [', b'"accounts": 7, "a": ['), id="7 for the accounts"),
    ],
)
def test_what_is_no_record_is_said_and_the_run_is_read_without_it(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    """With a launcher's log the attempt is known all the same; without one nothing is."""
    run = tmp_path / "job"
    path = record(run, close=True, outcome="failed")
    path.write_bytes(damage(path.read_bytes()))
    found = look(run)
    assert found is not None
    assert any(str(path) in note for note in found[0].notes)
    (run / "attempts-0.jsonl").unlink()
    look(run)


@pytest.mark.parametrize("size", [0, 1, 7, 8, RING - 1, RING, LIVE_BYTES - 1, LIVE_BYTES + 1])
def test_a_ring_of_another_size_is_said_to_be_lost(tmp_path: Path, size: int) -> None:
    """
    .live │ block │ ring ✂        the log is read, the newest entries are not
    """
    run = tmp_path / "job"
    long: list[Move] = [*MOVES, ("times", 600, [("step", 1, [("gap", 1)])])]
    path = record(run, close=False, outcome="success", moves=long)
    true = effective(RunReader(run).poll().ledger())
    live = ring_of(path)
    live.write_bytes((live.read_bytes() + b"\0")[:size])
    found = look(run)
    assert found is not None
    assert 0 < effective(found[1]) < true
    assert found[0].notes == [f"{live}: damaged, its last entries are lost"]


def test_a_ring_full_of_noise_breaks_nothing(tmp_path: Path) -> None:
    """Entries that no clock of this record can have said are not believed."""
    run = tmp_path / "job"
    path = record(run, close=False, outcome=None)
    live = ring_of(path)
    data = live.read_bytes()
    rng = random.Random(2)
    extremes = [value.to_bytes(8, "little", signed=True) for value in (2**63 - 1, -(2**63), -1)]
    for case in range(300):
        broken = bytearray(data)
        if case % 3 == 0:
            at = RING + 48 * rng.randrange(14) + 8 * rng.randrange(5)
            broken[at : at + 8] = rng.choice(extremes)
        elif case % 3 == 1:
            broken[RING:] = rng.randbytes(LIVE_BYTES - RING)
        else:
            broken[64:RING] = rng.randbytes(RING - 64)
        live.write_bytes(broken)
        found = look(run)
        assert found is not None
        assert found[1].window_ns < 365 * 24 * 3600 * 10**9, "a job of years, by a torn entry"


def test_a_chunk_of_a_kind_of_tomorrow_is_stepped_over(tmp_path: Path) -> None:
    """
    │ chunk │ chunk of kind 99 │ chunk │
    """
    run = tmp_path / "job"
    path = record(run, close=True, outcome="failed")
    before = RunReader(run).poll()
    path.write_bytes(path.read_bytes() + chunk(99, b"?" * 40, attempt=0, rank=0, reach=0))
    after = RunReader(run).poll()
    assert after.notes == before.notes == []
    assert after.ledger().accounts == before.ledger().accounts


def test_a_ring_left_behind_by_a_closed_record_is_not_read_again(tmp_path: Path) -> None:
    """
    .ett │ chunks │ exit ┊   .live │ a span that was open then │
    """
    run = tmp_path / "job"
    open_span: list[Move] = [*MOVES, ("open", 0, "evaluation", False)]
    path = record(run, close=False, outcome="failed", moves=open_span)
    ring = ring_of(path).read_bytes()
    shutil.rmtree(run)
    path = record(run, close=True, outcome="failed", moves=open_span)
    before = RunReader(run).poll().ledger()
    ring_of(path).write_bytes(ring)
    reader = RunReader(run).poll()
    assert reader.notes == []
    assert reader.ledger().accounts == before.accounts


def test_a_folder_in_place_of_a_record_is_said(tmp_path: Path) -> None:
    run = tmp_path / "job"
    path = record(run, close=True, outcome="failed")
    path.unlink()
    path.mkdir()
    path.with_suffix(".live").mkdir()
    found = look(run)
    assert found is not None
    assert found[0].notes == [f"{path}: not readable: Is a directory"]


@contextmanager
def denied(path: Path) -> Iterator[None]:
    """`path` cannot be read, not even by root, who becomes somebody else for a while."""
    user = os.geteuid()
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        if user == 0:
            os.seteuid(65534)
        yield
    finally:
        os.seteuid(user)
        path.chmod(mode)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that everybody may enter."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.parametrize("which", ["log", "ring", "launcher"])
def test_what_may_not_be_read_is_said(open_path: Path, which: str) -> None:
    run = open_path / "job"
    path = record(run, close=False, outcome="failed")
    true = effective(RunReader(run).poll().ledger())
    launcher = run / "attempts-0.jsonl"
    closed = {"log": path, "ring": ring_of(path), "launcher": launcher}[which]
    with denied(closed):
        found = look(run)
    assert found is not None
    assert any(str(closed) in note for note in found[0].notes)
    if which != "launcher":
        assert effective(found[1]) <= true


@pytest.mark.parametrize("up", [0, 1])
def test_a_run_that_may_not_be_entered_is_refused(open_path: Path, up: int) -> None:
    """Neither the run nor, in the second case, the folder of runs lets anybody in."""
    run = open_path / "runs" / "job"
    record(run, close=False, outcome="failed")
    with denied([run, run.parent][up]):
        assert look(run) is None
        with pytest.raises(RunError):
            find_run(str(run))


def test_a_damaged_record_is_no_excuse_to_lose_its_neighbour(tmp_path: Path) -> None:
    """
    rank 0  ▒▒▒▒▒▒▒       rank 1  s s s s     rank 1 counts as it was, rank 0 is unattributed
    """
    run = tmp_path / "job"
    for rank in range(2):
        with pytest.MonkeyPatch.context() as patch:
            played = player(run, patch, rank=rank, ranks=2)
            played.play([STEPS])
            played.recorder.close({"exit_ns": played.clock()})
    launched(
        run,
        {"event": "start", "attempt": 0, "t_ns": 0, "ranks": 2},
        {"event": "end", "attempt": 0, "t_ns": 12 * UNIT_NS, "outcome": "success"},
    )
    (run / "attempt-0" / "rank-0.ett").write_bytes(b"noise")
    found = look(run)
    assert found is not None
    assert found[1].accounts == {"effective": 12 * UNIT_NS, "unattributed": 12 * UNIT_NS}


def test_a_run_without_anything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="expected a run, found no record"):
        RunReader(tmp_path).poll()
    writer = flight(tmp_path / "job")
    writer.path.write_bytes(b"")
    with pytest.raises(RunError, match=r"rank-0\.ett: expected a flight/2 record"):
        RunReader(tmp_path / "job").poll()
    assert writer.ring_path.read_bytes()[:8] == BLOCK_MAGIC
    shutil.rmtree(tmp_path / "job")
    with pytest.raises(RunError):
        RunReader(tmp_path / "job").poll()
