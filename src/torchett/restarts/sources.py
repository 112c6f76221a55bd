"""Evidence from files: logs, error files, pods, flight recorder's dumps, folders of them, runs.

FILE        text · error.json of torch's elastic agent · pod as JSON · dump of one rank
FOLDER      the agent's folder of logs (last attempt), or one file a rank
RUN         causes in attempts-*.jsonl · errors in the ranks' records · the agent's logs
"""

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from torchett.failures.classifier import exit_text
from torchett.failures.elastic import (
    as_json,
    attempt_and_rank,
    logs_of_last_attempt,
    text_of_error_file,
)
from torchett.failures.evidence import Evidence, find_evidence, usual_lines
from torchett.failures.flight_recorder import (
    Dump,
    absent_ranks,
    is_dump,
    read_dump,
    stuck_collectives,
)
from torchett.failures.lines import Line
from torchett.failures.rules import Rule
from torchett.failures.schedulers import lines_of_pods
from torchett.failures.verdict import Verdict, judge
from torchett.failures.vocabulary import OUTLOOKS, Role, Strength
from torchett.model.causes import CAUSES
from torchett.model.errors import InputError, RunError
from torchett.runs.flight_records import Flight
from torchett.runs.folder import DUMP
from torchett.runs.reader import RunReader

_LONGEST: Final = 32 << 20  # of a longer file, its end is read


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """How files are read: with which rules, and which lines are usual."""

    rules: Sequence[Rule]
    usual: Collection[str] = frozenset()

    def of_files(self, paths: Sequence[Path]) -> list[tuple[Path, Verdict]]:
        """A verdict for each file. Dumps of several ranks are compared with each other."""
        read = [(path, *_read(path)) for path in paths]
        dumps = [_dump(path, data) for path, data, _ in read if is_dump(data)]
        return [
            (
                path,
                self._of_dumps(path, dumps) if is_dump(data) else judge(self._of(path, data, at)),
            )
            for path, data, at in read
        ]

    def of_folder(self, folder: Path) -> Verdict:
        """One verdict on all files of a folder: the last attempt of the agent's, or all."""
        paths = logs_of_last_attempt(folder) or sorted(p for p in folder.iterdir() if p.is_file())
        return self._of_one_failure(folder, paths)

    def of_run(self, run: Path) -> Verdict:
        """The verdict on the last attempt of a run that failed."""
        attempt, found = _last_failure(run)
        evidence = [one for fact in found for one in self._of_cause(*fact)]
        for flight in _records(run):
            error = (flight.exit or {}).get("error")
            if error and (attempt is None or flight.attempt == attempt):
                evidence += self._of_text(str(error), flight.path, rank=flight.rank)
        for path in logs_of_last_attempt(run / f"torchelastic-{attempt or 0}"):
            data, first = _read(path)
            evidence += self._of(path, data, first)
        stuck = stuck_collectives(dumps_of(run, attempt or 0))
        evidence += self._of_text("\n".join(map(str, stuck)), run)
        if not evidence and not found:
            raise InputError(f"{run}: expected a failed attempt, found none recorded")
        return judge(evidence, absent_ranks(stuck))

    def _of_one_failure(self, folder: Path, paths: Iterable[Path]) -> Verdict:
        evidence: list[Evidence] = []
        dumps: list[Dump] = []
        for path in paths:
            data, first = _read(path)
            if is_dump(data):
                dumps.append(_dump(path, data))
            else:
                evidence += self._of(path, data, first)
        stuck = stuck_collectives(dumps)
        evidence += self._of_text("\n".join(map(str, stuck)), folder)
        if not evidence and not dumps:
            raise InputError(f"{folder}: expected logs or dumps of a failed job, found no failure")
        return judge(evidence, absent_ranks(stuck))

    def _of_dumps(self, path: Path, dumps: list[Dump]) -> Verdict:
        stuck = stuck_collectives(dumps)
        evidence = self._of_text("\n".join(map(str, stuck)), path)
        return judge(evidence, absent_ranks(stuck))

    def _of(self, path: Path, data: bytes, first_line: int) -> list[Evidence]:
        """The evidence in one file's text. Its place in the agent's folder says the rank."""
        if b"\0" in data[:4096]:
            raise InputError(f"{path}: expected text, JSON or a dump, found binary data")
        text = data.decode(errors="replace")
        place = attempt_and_rank(path)
        content = as_json(text) if path.suffix == ".json" or len(text) < 1 << 20 else None
        error, pods = text_of_error_file(content), lines_of_pods(content)
        if error is not None or pods is not None:
            text = error if error is not None else "\n".join(pods or [])
        rank = None if place is None else place[1]
        return self._of_text(text, path, rank=rank, first_line=first_line)

    def _of_text(
        self, text: str, path: Path, rank: int | None = None, first_line: int = 1
    ) -> list[Evidence]:
        return find_evidence(
            text, self.rules, usual=self.usual, file=str(path), rank=rank, first_line=first_line
        )

    def _of_cause(self, path: Path, number: int, cause: str) -> Iterator[Evidence]:
        """What a launcher wrote as the cause: one of the ledger's, a signal, a status or an error.

        A cause of the ledger is taken as it is: somebody who knew more has decided.
        """
        if cause not in CAUSES:
            text = exit_text(int(cause[5:])) if cause.startswith("exit_") else cause
            yield from self._of_text(text, path, first_line=number)
            return
        rule = Rule(
            name="run/cause",
            category=cause,
            role=Role.INITIATING,
            strength=Strength.DECISIVE,
            outlook=OUTLOOKS[cause],
            patterns=(),
            source="the run's own record",
            example="",
            domain=CAUSES[cause],
        )
        yield Evidence(
            rule=rule, line=Line(number=number, text=cause, message=cause), file=str(path)
        )


def sources(rules: Sequence[Rule], good: Path | None = None) -> Sources:
    """How to read files; lines of `good`, the log of an attempt that went well, do not count."""
    if good is None:
        return Sources(rules=rules)
    return Sources(rules=rules, usual=usual_lines(_read(good)[0].decode(errors="replace")))


def _read(path: Path) -> tuple[bytes, int]:
    """A file's bytes and the number of their first line. Of a very long file, its end."""
    if str(path) == "-":
        return sys.stdin.buffer.read(), 1
    try:
        with path.open("rb") as file:
            skipped = _skip_lines(file, path.stat().st_size - _LONGEST)
            return file.read(), skipped + 1
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{path}: not readable: {reason}") from None


def _skip_lines(file: BinaryIO, size: int) -> int:
    """Read past at least `size` bytes, to the start of a line; how many lines that were."""
    lines = 0
    while size > 0:
        block = file.read(min(size, 1 << 20))
        lines += block.count(b"\n")
        size -= len(block)
        if size <= 0 and not block.endswith(b"\n"):
            file.readline()
            lines += 1
    return lines


def _dump(path: Path, data: bytes) -> Dump:
    place = attempt_and_rank(path)
    return read_dump(path, data, None if place is None else place[1])


def dumps_of(run: Path, attempt: int, since_s: float = 0.0) -> list[Dump]:
    """The flight recorder's dumps of one attempt, written after `since_s`; damaged ones left out.

    All restarts of an attempt write to the same files: the last ones count.
    """
    found = []
    for path in sorted((run / f"attempt-{attempt}").glob(f"{DUMP}*")):
        try:
            if path.stat().st_mtime >= since_s:
                found.append(read_dump(path, path.read_bytes()))
        except (OSError, InputError):
            continue
    return found


def _records(run: Path) -> list[Flight]:
    """The records of a run's ranks; none where only the launcher wrote something."""
    try:
        return RunReader(run).poll().flights
    except RunError:
        return []


def _last_failure(run: Path) -> tuple[int | None, list[tuple[Path, int, str]]]:
    """The number of the last attempt that failed, and where its causes are written."""
    ends: dict[int, list[tuple[Path, int, str]]] = {}
    for path in sorted(run.glob("attempts-*.jsonl")):
        for number, line in enumerate(_read(path)[0].splitlines(), 1):
            try:
                fact: dict[str, Any] = json.loads(line)
                if fact.get("event") != "end" or fact["outcome"] == "success":
                    continue
                ends.setdefault(int(fact["attempt"]), []).append(
                    (path, number, str(fact.get("cause") or ""))
                )
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # the head, or a line that was cut off
    last = max(ends, default=None)
    return last, [] if last is None else ends[last]
