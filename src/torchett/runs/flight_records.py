"""Flight records read back: bytes of a log and a ring into rows on the wall clock."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from torchett.ledger.rows import STEP as STEP_ROW
from torchett.ledger.rows import AccountTable, Rows
from torchett.model.accounts import is_recordable
from torchett.model.values import Checkpoint
from torchett.record.clock import Anchor, clock_id
from torchett.record.flight.format import (
    ACCOUNT_SHIFT,
    BACKGROUND,
    CHECKPOINT,
    COUNT_SHIFT,
    ENTRY,
    FORMAT,
    FRAME,
    FRAMES,
    NOTE,
    SPAN,
    STEP,
    Damage,
    chunks,
    read_header,
)
from torchett.record.flight.ring import Ring, read_ring, ring_path

FRAME_DTYPE = np.dtype(
    {
        "names": ["kind", "account", "count", "index", "t0", "t1", "least", "median", "most"],
        "formats": ["u1", "<u2", "<u4", "<i8", "<i8", "<i8", "<f4", "<f4", "<f4"],
        "offsets": [0, 2, 4, 8, 16, 24, 32, 36, 40],
        "itemsize": FRAME.size,
    }
)
_ENTRY = np.dtype([(n, "<i8") for n in ("wait", "t0", "t1", "index", "meta", "seq")])
assert _ENTRY.itemsize == ENTRY.size
_HEADER_BYTES = 1 << 16
_MOST_ACCOUNTS = 1 << 16
FURTHEST_NS = 1 << 61  # from 1970, and from a host's start: their sum fits in 64 bits
_LONGEST_NS = 300 * 86_400 * 10**9
Array = np.ndarray[Any, Any]
Key = tuple[int, int, int]  # the launcher's attempt, the agent's restart in it, the process's life
_OPEN = np.dtype([(n, "<i8") for n in ("account", "t0", "background")])


@dataclass(slots=True, kw_only=True)
class Flight:
    """One record, on its own monotonic clock, read as far as it goes. Call `poll` for more."""

    path: Path
    header: dict[str, Any]
    anchor: Anchor
    names: dict[int, str]
    position: int  # bytes of the log taken in
    reach: int = 0  # entries that the log holds
    frames: "list[tuple[int, int, Array]]" = field(default_factory=list)  # not yet made rows of
    ring: "Array" = field(default_factory=lambda: np.zeros(0, _ENTRY))
    open: "Array" = field(default_factory=lambda: np.zeros(0, _OPEN))
    exit: dict[str, Any] | None = None
    facts: list[tuple[str, Any]] = field(default_factory=list)  # what levers noted: kind, fact
    last_ns: int = 0  # the latest time in it
    beat_ns: int | None = None  # its last sign of life, if it has not said that it is over
    hole_ns: int | None = None  # since when entries are missing before the ring begins
    damaged: int = 0
    cut_off: int = 0
    dropped: int = 0
    _logged_drops: int = 0  # of entries below `reach`
    lost_ring: str = ""  # what became of the ring, if it cannot be read
    closed: bool = False  # the log says how the process ended
    sealed: bool = False  # the ring is in the log,
    _sealed_beat_ns: int | None = None  # with this last beat

    @property
    def attempt(self) -> int:
        return int(self.header["attempt"])

    @property
    def restart(self) -> int:
        return int(self.header.get("restart", 0))

    @property
    def life(self) -> int:
        """How often the training function had begun anew in this process."""
        return int(self.header.get("life", 0))

    @property
    def key(self) -> Key:
        return self.attempt, self.restart, self.life

    @property
    def rank(self) -> int:
        return int(self.header["rank"])

    @property
    def ranks(self) -> int:
        return int(self.header.get("ranks", 1))

    @property
    def began_ns(self) -> int:
        return int(self.header["began_ns"])

    def poll(self) -> None:
        """Take in what has been written since the last look."""
        self.exit = self.exit if self.closed else None  # the ring said it: perhaps no longer
        live_path = ring_path(self.path, self.header)
        live = read_ring(live_path)  # before the log: see layout
        with self.path.open("rb") as file:
            file.seek(self.position)
            data = file.read()
        if data:
            self._read_log(data)
        self.closed = self.closed or self.exit is not None
        self._read_live(live)
        self.lost_ring = ""
        if live is None and not self.closed and not self.sealed:
            if live_path.exists():
                self.lost_ring = f"{live_path}: damaged, its last entries are lost"
            elif live_path.suffix == ".ring" and self.anchor.clock == clock_id():
                self.lost_ring = f"{self.path}: its newest entries are in {live_path}: not found"

    def problems(self) -> list[str]:
        """What of the record could not be read, a line each."""
        said = []
        if self.damaged:
            said.append(f"{self.path}: {self.damaged} damaged bytes skipped")
        if self.cut_off:
            said.append(f"{self.path}: the last {self.cut_off} bytes are cut off")
        if self.dropped:
            said.append(
                f"{self.path}: {self.dropped} entries were dropped (a full disk?);"
                " the time they covered is unattributed"
            )
        if self.lost_ring:
            said.append(self.lost_ring)
        return said

    def _read_log(self, data: bytes) -> None:
        lanes: dict[tuple[int, int], list[memoryview]] = {}
        self.cut_off = 0
        for piece in chunks(memoryview(data)):
            if isinstance(piece, Damage):
                if piece.at_end:
                    self.cut_off = piece.size  # perhaps still being written: looked at again
                else:
                    self.damaged += piece.size
                    self.position += piece.size
                continue
            self.position += piece.size
            self.reach = max(self.reach, piece.reach)
            if piece.kind == FRAMES:
                lanes.setdefault((piece.attempt, piece.rank), []).append(piece.payload)
            elif piece.kind == NOTE:
                self._take_note(json.loads(bytes(piece.payload)))

        for (attempt, rank), payloads in lanes.items():
            frames = np.frombuffer(b"".join(payloads), dtype=FRAME_DTYPE)
            if len(frames):
                self.frames.append((attempt, rank, frames))
                self.last_ns = max(self.last_ns, int(frames["t1"].max()))

    def _take_note(self, note: dict[str, Any]) -> None:
        if "name" in note:
            number = int(note["account"])
            if 0 <= number < _MOST_ACCOUNTS:  # no frame can name another
                self.names[number] = str(note["name"])
        elif "dropped" in note:
            self.dropped = self._logged_drops = int(note["dropped"])
        elif "sealed" in note:
            self.sealed = True
            self._sealed_beat_ns = int(note["beat_ns"]) or None
        elif "exit_ns" in note:
            self.exit = note
            self.last_ns = max(self.last_ns, int(note["exit_ns"]))
        elif "note" in note:
            self.facts.append((str(note["note"]), note.get("fact")))

    def _plausible(self, t_ns: Array) -> Array:
        """Which of these may be times of this process: none is older than a year."""
        return np.asarray(np.abs(t_ns // 2 - self.began_ns // 2) < _LONGEST_NS // 2)

    def _read_live(self, live: Ring | None) -> None:
        """Take in the ring's entries that the log does not hold, and the spans that are open."""
        self.ring, self.open, self.hole_ns = np.zeros(0, _ENTRY), np.zeros(0, _OPEN), None
        self.beat_ns = None if self.closed else self._sealed_beat_ns
        if live is None or self.closed or self.sealed:
            return
        self.dropped = self._logged_drops if live.counts_drops_in_log else live.dropped
        beat = np.array([live.beat_ns])
        self.beat_ns = live.beat_ns if live.beat_ns and self._plausible(beat)[0] else None
        ring = np.frombuffer(live.entries, dtype=_ENTRY)
        slots = np.arange(live.slots)
        ring = ring[(ring["seq"] > self.reach) & ((ring["seq"] - 1) % live.slots == slots)]
        for key in ("wait", "t0", "t1"):  # noise, not times of this process
            ring = ring[self._plausible(ring[key])]
        self.ring = ring[np.argsort(ring["seq"], kind="stable")]
        ended = (self.ring["meta"] >> ACCOUNT_SHIFT & 0xFFFF, self.ring["t0"])
        over = set(zip(*(column.tolist() for column in ended), strict=True))
        # One that is over all the same: the process was killed as it ended.
        still = [span for span in live.open_spans if span[:2] not in over]
        table = np.array([(a + 1, t, b) for a, t, b in still], dtype=_OPEN)
        self.open = table[(table["account"] > 0) & self._plausible(table["t0"])]
        if len(self.ring):
            missing = int(self.ring["seq"][0]) - 1 - self.reach
            if missing > 0:
                self.hole_ns = max(self.last_ns, self.began_ns)
                if live.counts_drops_in_log:
                    self.dropped += missing
                else:
                    self.dropped = max(self.dropped, missing)
        for note in live.notes():
            try:
                self._take_note(note)
            except (ValueError, KeyError, TypeError):
                continue  # noise


def open_flight(path: Path, *, shipped: bool = False) -> Flight | str:
    """The record at `path` with its header read, or why it cannot be read.

    One that was shipped has its ring beside it: a path that it names is another host's.
    """
    try:
        with path.open("rb") as file:
            line = file.readline(_HEADER_BYTES)
    except OSError as error:
        return f"{path}: not readable: {error.strerror}"
    try:
        header = read_header(line)
        if shipped:
            header.pop("ring", None)
        flight = Flight(
            path=path,
            header=header,
            anchor=Anchor.from_json(header.get("anchor")),
            names=dict(enumerate(map(str, header["accounts"]))),
            position=len(line),
        )
        flight.last_ns = flight.began_ns
        if min(*flight.key, flight.rank) < 0 or flight.rank >= flight.ranks:
            raise ValueError
        times = (flight.began_ns, flight.anchor.wall_ns, flight.anchor.mono_ns)
        if max(map(abs, times)) >= FURTHEST_NS:
            raise ValueError
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        found = "a damaged first line" if line else "an empty file"
        return f"{path}: expected a {FORMAT} record, found {found}"
    return flight


def log_rows(
    flight: Flight, accounts: AccountTable, offset_ns: int
) -> tuple[Rows, list[Checkpoint]]:
    """New rows and checkpoints of the log, placed in time, with their chunks' attempt and rank."""
    parts: list[Rows] = []
    checkpoints: list[Checkpoint] = []
    lanes, flight.frames = flight.frames, []
    if len(lanes) > 1 and len({(attempt, rank) for attempt, rank, _ in lanes}) == 1:
        lanes = [(*lanes[0][:2], np.concatenate([frames for _, _, frames in lanes]))]
    numbers = _translation(flight, accounts)
    for attempt, rank, frames in lanes:
        durable = frames["kind"] == CHECKPOINT
        for frame in frames[durable]:
            at = int(frame["t1"]) + offset_ns
            step = int(frame["index"])
            checkpoints.append(Checkpoint(attempt=attempt, step=step, durable_ns=at))
        kept = frames[~durable & (frames["t0"] <= frames["t1"]) & (frames["count"] > 0)]
        step = kept["kind"] == STEP
        parts.append(
            Rows.of(
                attempt=attempt,
                rank=rank,
                account=np.where(
                    step, STEP_ROW, numbers[np.minimum(kept["account"], len(numbers) - 1)]
                ),
                background=kept["kind"] == BACKGROUND,
                index=kept["index"],
                count=np.where(step, kept["count"], 1),
                t0_ns=kept["t0"] + offset_ns,
                t1_ns=kept["t1"] + offset_ns,
                least=kept["least"],
                median=kept["median"],
                most=kept["most"],
            )
        )
    return Rows.joined(parts), checkpoints


def ring_rows(
    flight: Flight, accounts: AccountTable, offset_ns: int
) -> tuple[Rows, list[Checkpoint]]:
    """Rows and checkpoints that are still in the ring."""
    ring = flight.ring
    if not len(ring):
        return Rows.none(), []
    lane = {"attempt": flight.attempt, "rank": flight.rank}
    kind, count = ring["meta"] & 0xFF, ring["meta"] >> COUNT_SHIFT
    whole = (ring["t0"] <= ring["t1"]) & (count > 0)
    ring, kind, count = ring[whole], kind[whole], count[whole]
    checkpoints = [
        Checkpoint(
            attempt=flight.attempt, step=int(e["index"]), durable_ns=int(e["t1"]) + offset_ns
        )
        for e in ring[kind == CHECKPOINT]
    ]
    numbers = _translation(flight, accounts)
    account = numbers[np.minimum(ring["meta"] >> ACCOUNT_SHIFT & 0xFFFF, len(numbers) - 1)]
    step = kind == STEP
    kept = (kind == STEP) | (kind == SPAN) | (kind == BACKGROUND)
    waited = step & (ring["wait"] < ring["t0"])
    rows = [
        Rows.of(
            **lane,
            account=accounts.id("data_wait"),
            t0_ns=ring["wait"][waited] + offset_ns,
            t1_ns=ring["t0"][waited] + offset_ns,
        ),
        Rows.of(
            **lane,
            account=np.where(step, STEP_ROW, account)[kept],
            background=(kind == BACKGROUND)[kept],
            index=ring["index"][kept],
            count=np.where(step, count, 1)[kept],
            t0_ns=ring["t0"][kept] + offset_ns,
            t1_ns=ring["t1"][kept] + offset_ns,
        ),
    ]
    return Rows.joined(rows), checkpoints


def open_rows(flight: Flight, accounts: AccountTable, offset_ns: int, until_ns: int) -> Rows:
    """Spans that were open when the rank was last seen, as lasting until `until_ns`."""
    if not len(flight.open):
        return Rows.none()
    numbers = _translation(flight, accounts)
    t0 = flight.open["t0"] + offset_ns
    return Rows.of(
        attempt=flight.attempt,
        rank=flight.rank,
        account=numbers[np.clip(flight.open["account"] - 1, 0, len(numbers) - 1)],
        background=flight.open["background"] != 0,
        t0_ns=t0,
        t1_ns=np.maximum(t0, until_ns),
    )


def hole_rows(flight: Flight, accounts: AccountTable, offset_ns: int) -> Rows:
    """The time between log and ring where entries were dropped: unattributed, whatever it was."""
    if flight.hole_ns is None:
        return Rows.none()
    first = flight.ring[0]
    until = max(flight.hole_ns, min(int(first["wait"]), int(first["t0"])))
    return Rows.of(
        attempt=flight.attempt,
        rank=flight.rank,
        account=accounts.id("unattributed"),
        t0_ns=[flight.hole_ns + offset_ns],
        t1_ns=[until + offset_ns],
    )


def _translation(flight: Flight, accounts: AccountTable) -> Array:
    """The record's account numbers as the table's; what no span may carry is unattributed."""
    table = np.full(max(flight.names, default=-1) + 2, accounts.id("unattributed"), dtype=np.int16)
    for number, name in flight.names.items():
        if is_recordable(name):
            table[number] = accounts.id(name)
    return table
