"""A history read from events/1.

    {"event":"job","format":"events/1","job":"name","ranks":1}
    {"event":"attempt_start","attempt":0,"t":0.0,"submitted":-30.0,"allocated":-5.0,"ranks":1}
    {"event":"span","attempt":0,"rank":0,"account":"process_group_init","t0":1.0,"t1":2.5}
    {"event":"step","attempt":0,"rank":0,"step":17,"t0":40.0,"t1":41.0}
    {"event":"checkpoint","attempt":0,"step":17,"durable":45.0}
    {"event":"attempt_end","attempt":0,"t":60.0,"outcome":"failed","cause":"nccl_timeout"}
    {"event":"now","t":70.0}

Times are seconds on one clock; inside they are nanoseconds since the earliest of them.
"""

import json
import math
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from torchett.ledger.history import History
from torchett.ledger.rows import STEP, AccountTable, Ints, Rows
from torchett.ledger.rules.window import complaint
from torchett.model.accounts import is_recordable
from torchett.model.causes import DOMAINS, OUTCOMES
from torchett.model.errors import InputError
from torchett.model.values import RESUMED_FROM, Attempt, Checkpoint, Job
from torchett.runs.events.writer import FORMAT

_LONGEST_S = float(1 << 62) / 1e9
_MANY = 1 << 62
_MOST = 1 << 20
_MOST_ACCOUNTS = 10_000


def read(path: Path) -> History:
    """The history in an events/1 file; InputError names the line that is not one."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: expected a readable file: {error.strerror}") from None
    return parse(data.split(b"\n"), str(path))


def parse(lines: Iterable[bytes | str], name: str = "events") -> History:
    """The history in lines of events/1."""
    reader = _Reader(name)
    for number, line in enumerate(lines, 1):
        if line.strip():
            reader.take(number, line)
    return reader.history()


class _Reader:
    """Takes events one line at a time and checks, at the end, what only the whole can show."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._line = 0
        self._job: dict[str, Any] | None = None
        self._starts: dict[int, tuple[int, dict[str, Any]]] = {}
        self._ends: dict[int, tuple[int, dict[str, Any]]] = {}
        self._checkpoints: list[tuple[int, int, int, float]] = []
        self._now: float | None = None
        self._now_line = 0
        self._accounts = AccountTable()
        self._ints = array("q")  # attempt, rank, account or STEP, index, background, line
        self._times = array("d")  # t0, t1
        self._decode = json.JSONDecoder(parse_constant=self._not_finite).decode
        self._takers: dict[Any, Callable[[dict[str, Any]], None]] = {
            "step": self._take_step,
            "span": self._take_span,
            "checkpoint": self._take_checkpoint,
            "attempt_start": self._take_start,
            "attempt_end": self._take_end,
            "job": self._take_job,
            "now": self._take_now,
        }

    def take(self, number: int, line: bytes | str) -> None:
        self._line = number
        try:
            event = self._decode(line.decode() if isinstance(line, bytes) else line)
        except UnicodeDecodeError:
            self._refuse("expected UTF-8")
        except (ValueError, RecursionError):  # not JSON, or a number of thousands of digits
            self._refuse("expected one whole JSON object")
        if not isinstance(event, dict):
            self._refuse(f"expected a JSON object, found {_shown(event)}")
        kind = event.get("event")
        taker = self._takers.get(kind) if isinstance(kind, str) else None
        if taker is None:
            known = ", ".join(self._takers)
            self._refuse(f"expected event to be one of {known}, found {_shown(kind)}")
        taker(event)

    # One event each --------------------------------------------------------------------------

    def _take_step(self, event: dict[str, Any]) -> None:
        t0, t1 = self._interval(event)
        attempt, rank = self._number(event, "attempt"), self._number(event, "rank")
        step = self._count(event, "step")
        self._ints.extend((attempt, rank, STEP, step, 0, self._line))
        self._times.extend((t0, t1))

    def _take_span(self, event: dict[str, Any]) -> None:
        t0, t1 = self._interval(event)
        account = self._text(event, "account")
        if not is_recordable(account):
            self._refuse(
                "expected account to be a start, in-loop or shutdown account or x-NAME,"
                f" found {_shown(account)}"
            )
        background = event.get("background", False)
        if not isinstance(background, bool):
            self._refuse(f"expected background to be true or false, found {_shown(background)}")
        attempt, rank = self._number(event, "attempt"), self._number(event, "rank")
        number = self._accounts.id(account)
        if number > _MOST_ACCOUNTS:
            self._refuse(f"expected at most {_MOST_ACCOUNTS} accounts, found more")
        self._ints.extend((attempt, rank, number, 0, background, self._line))
        self._times.extend((t0, t1))

    def _take_checkpoint(self, event: dict[str, Any]) -> None:
        attempt, step = self._number(event, "attempt"), self._count(event, "step")
        self._checkpoints.append((self._line, attempt, step, self._time(event, "durable")))

    def _take_start(self, event: dict[str, Any]) -> None:
        number = self._number(event, "attempt")
        if number in self._starts:
            self._refuse(f"expected one attempt_start of attempt {number}, found a second")
        fact: dict[str, Any] = {"t": self._time(event, "t")}
        for key in ("submitted", "allocated"):
            if event.get(key) is not None:
                fact[key] = self._time(event, key)
        if event.get("ranks") is not None:
            fact["ranks"] = self._number(event, "ranks", least=1)
        if event.get("resumed_from") is not None:
            fact["resumed_from"] = self._one_of(event, "resumed_from", RESUMED_FROM)
        self._starts[number] = (self._line, fact)

    def _take_end(self, event: dict[str, Any]) -> None:
        number = self._number(event, "attempt")
        if number in self._ends:
            self._refuse(f"expected one attempt_end of attempt {number}, found a second")
        fact: dict[str, Any] = {"t": self._time(event, "t")}
        fact["outcome"] = self._one_of(event, "outcome", OUTCOMES)
        if event.get("cause") is not None:
            fact["cause"] = self._text(event, "cause")
        if event.get("domain") is not None:
            fact["domain"] = self._one_of(event, "domain", DOMAINS)
        self._ends[number] = (self._line, fact)

    def _take_job(self, event: dict[str, Any]) -> None:
        if self._job is not None:
            self._refuse("expected one job event, found a second")
        self._one_of(event, "format", (FORMAT,))
        name = self._text(event, "job")
        self._job = {"name": name, "ranks": self._number(event, "ranks", least=1)}

    def _take_now(self, event: dict[str, Any]) -> None:
        t = self._time(event, "t")
        if self._now is None or t > self._now:
            self._now, self._now_line = t, self._line

    # The whole -------------------------------------------------------------------------------

    def history(self) -> History:
        if self._job is None:
            self._line = max(self._line, 1)
            self._refuse("expected a job event, found none in the file")
        ints = np.frombuffer(self._ints, dtype=np.int64).reshape(-1, 6)
        times = np.frombuffer(self._times, dtype=np.float64).reshape(-1, 2)
        epoch = self._earliest(times)
        if len(times) and float(times.max()) - epoch > _LONGEST_S:
            at = int(np.argmax(times.max(axis=1)))
            self._refuse("expected times less than 146 years apart", int(ints[at, 5]))
        attempts = self._attempts(epoch)
        self._check_belongs(ints, attempts)
        return History(
            job=Job(
                name=self._job["name"],
                ranks=self._job["ranks"],
                attempts=tuple(attempts[number] for number in sorted(attempts)),
            ),
            rows=Rows.of(
                attempt=ints[:, 0],
                rank=ints[:, 1],
                account=ints[:, 2],
                index=ints[:, 3],
                background=ints[:, 4],
                t0_ns=_nanoseconds(times[:, 0], epoch),
                t1_ns=_nanoseconds(times[:, 1], epoch),
            ),
            accounts=self._accounts,
            checkpoints=tuple(
                Checkpoint(attempt=attempt, step=step, durable_ns=self._ns(t, epoch, line))
                for line, attempt, step, t in self._checkpoints
            ),
            now_ns=None if self._now is None else self._ns(self._now, epoch, self._now_line),
            epoch_s=epoch,
        )

    def _earliest(self, times: Any) -> float:
        some = [float(times.min())] if len(times) else []
        times = ("t", "submitted", "allocated")
        some += [fact[k] for _, fact in self._starts.values() for k in times if k in fact]
        some += [fact["t"] for _, fact in self._ends.values()]
        some += [t for _, _, _, t in self._checkpoints]
        some += [] if self._now is None else [self._now]
        return min(some, default=0.0)

    def _attempts(self, epoch: float) -> dict[int, Attempt]:
        assert self._job is not None
        for number, (line, _) in self._ends.items():
            if number not in self._starts:
                self._refuse(f"expected an attempt_start of attempt {number}, found none", line)
        found: dict[int, Attempt] = {}
        previous: Attempt | None = None
        for number in sorted(self._starts):
            line, start = self._starts[number]
            end_line, end = self._ends.get(number, (line, None))

            def ns(fact: dict[str, Any], key: str, line: int = line) -> int | None:
                return self._ns(fact[key], epoch, line) if key in fact else None

            attempt = Attempt(
                number=number,
                start_ns=self._ns(start["t"], epoch, line),
                ranks=start.get("ranks", self._job["ranks"]),
                submitted_ns=ns(start, "submitted"),
                allocated_ns=ns(start, "allocated"),
                end_ns=None if end is None else ns(end, "t", end_line),
                outcome=None if end is None else end["outcome"],
                cause=None if end is None else end.get("cause"),
                domain=None if end is None else end.get("domain"),
                resumed_from=start.get("resumed_from"),
            )
            if attempt.end_ns is not None and attempt.end_ns < attempt.start_ns:
                line = end_line
            if problem := complaint(previous, attempt):
                self._refuse(problem, line)
            found[number] = previous = attempt
        return found

    def _check_belongs(self, ints: Ints, attempts: dict[int, Attempt]) -> None:
        """Refuse the first event whose attempt or rank does not exist."""
        for line, attempt, _, _ in self._checkpoints:
            if attempt not in attempts:
                self._refuse(f"expected an attempt_start of attempt {attempt}, found none", line)
        if not len(ints):
            return
        numbers = np.array(sorted(attempts), dtype=np.int64)
        ranks = np.array([attempts[n].ranks for n in numbers.tolist()] + [0], dtype=np.int64)
        at = np.searchsorted(numbers, ints[:, 0])
        known = np.append(numbers, -1)[at] == ints[:, 0]
        bad = np.flatnonzero(~known | (ints[:, 1] >= ranks[at]))
        if len(bad):
            row, first = ints[bad[0]].tolist(), int(bad[0])
            if not known[first]:
                self._refuse(f"expected an attempt_start of attempt {row[0]}, found none", row[5])
            self._refuse(
                f"expected rank to be below {int(ranks[at[first]])}, the ranks of attempt"
                f" {row[0]}, found {row[1]}",
                row[5],
            )

    # Fields ----------------------------------------------------------------------------------

    def _interval(self, event: dict[str, Any]) -> tuple[float, float]:
        t0, t1 = self._time(event, "t0"), self._time(event, "t1")
        if t1 < t0:
            self._refuse(f"expected t0 ≤ t1, found t0 {t0} and t1 {t1}")
        return t0, t1

    def _time(self, event: dict[str, Any], key: str) -> float:
        value = event.get(key)
        if type(value) is float and math.isfinite(value):
            return value
        if type(value) is int and abs(value) < _MANY:
            return float(value)
        self._refuse(f"expected {key} to be a finite number of seconds, found {_shown(value)}")

    def _count(self, event: dict[str, Any], key: str, least: int = 0, most: int = _MANY) -> int:
        value = event.get(key)
        if type(value) is int and least <= value <= most:
            return value
        upto = "" if most == _MANY else f" and ≤ {most}"
        self._refuse(f"expected {key} to be a whole number ≥ {least}{upto}, found {_shown(value)}")

    def _number(self, event: dict[str, Any], key: str, least: int = 0) -> int:
        """A number of attempts or ranks: more than a million is a mistake, not a job."""
        return self._count(event, key, least, _MOST)

    def _text(self, event: dict[str, Any], key: str) -> str:
        value = event.get(key)
        if isinstance(value, str) and value and value.isprintable():
            return value
        self._refuse(f"expected {key} to be a text, found {_shown(value)}")

    def _one_of(self, event: dict[str, Any], key: str, known: tuple[str, ...]) -> str:
        value = event.get(key)
        if isinstance(value, str) and value in known:
            return value
        self._refuse(f"expected {key} to be {' or '.join(known)}, found {_shown(value)}")

    def _ns(self, t: float, epoch: float, line: int) -> int:
        if t - epoch > _LONGEST_S:
            self._refuse("expected times less than 146 years apart", line)
        return round((t - epoch) * 1e9)

    def _not_finite(self, constant: str) -> NoReturn:
        self._refuse(f"expected finite numbers, found {constant}")

    def _refuse(self, expected: str, line: int | None = None) -> NoReturn:
        raise InputError(f"{self._name}:{line or self._line}: {expected}")


def _nanoseconds(t: Any, epoch: float) -> Ints:
    return np.asarray(np.rint((t - epoch) * 1e9), dtype=np.int64)


def _shown(value: Any) -> str:
    """A value as it stood in the file, shortened; 'nothing' for a missing one."""
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()
    return text if len(text) <= 60 else text[:57] + "…"
