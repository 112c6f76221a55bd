"""One line of a log, taken apart: rank, time, level and what is left as the message.

    [rank3]:[E512 10:03:44.120 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught …
     rank=3  level=E  time                                message

Launchers put a rank before each line, loggers a time and a level, in any order; prefixes are
taken off one after the other until none fits.
"""

import re
from calendar import month_abbr
from dataclasses import dataclass
from datetime import datetime
from typing import Final

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RANK_PREFIXES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[rank(?P<rank>\d+)\]:?\s*",  # torch, TORCH_CPP_LOG and excepthook
        r"\[(?:default|[A-Za-z_]\w*?)(?P<rank>\d+)\]:\s*",  # torchrun --tee
        r"\[\d+,(?P<rank>\d+)\]<std(?:out|err)>:\s?",  # mpirun --tag-output
        r"(?P<rank>\d{1,5}): (?=\s*\S)",  # srun --label
        r"\[?[Rr]ank[ :=]?(?P<rank>\d+)\]?(?: \|)?[:,\]]?\s+",
        r"\(\w+ (?:rank=(?P<rank>\d+)[, ]*)?(?:pid=\d+)(?:, ip=[\d.]+)?\)\s*",  # Ray
    )
)
_MONTHS: Final = {name.lower(): number for number, name in enumerate(month_abbr) if name}
_CLOCK: Final = r"(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d+))?"
_TIME_PREFIXES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\[?(?P<y>\d{{4}})[-/](?P<mo>\d\d)[-/](?P<d>\d\d)[ T]{_CLOCK}"
        r"(?:Z|[+-]\d\d:?\d\d)?\]?:?(?=\s|$|[|:,\[-])",
        rf"\[?(?:(?:mon|tue|wed|thu|fri|sat|sun)\w*,? +)?(?P<mon>[a-z]{{3}}) +(?P<d>\d\d?) {_CLOCK}"
        r"(?: (?P<y>\d{4}))?\]?:?\s"  # dmesg -T; syslog, with its host
        r"(?:[a-z][\w.-]*\s+(?=\[|\(|\d+: |[a-z][\w.-]*(?:\[\d+\])?: ))?",
        rf"\[?(?P<level>[IWEF])(?P<mo>\d\d?)(?P<d>\d\d) {_CLOCK}(?: +\d+)? (?P<at>[^\]]*?:\d+)\] ?",
        rf"\[?(?P<mo>\d\d)/(?P<d>\d\d)(?:/(?P<y>\d{{2,4}}))? {_CLOCK}\]?\s",
        r"(?:kernel: )?\[\s*\d{1,9}\.\d{3,9}\]\s?",  # dmesg: seconds since boot
        rf"\[?{_CLOCK}\]?\s",
    )
)
_OTHER_PREFIXES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"[- |]*\[?(?P<level>DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\]?[ :|,-]+",
        r"(?P<host>[A-Za-z][\w.-]*):\d+:\d+ \[(?P<local>\d+)\] ",  # NCCL
        r"\[?[\w./-]+\.(?:py|cc|cpp|cu):\d+(?::\w+)?\]?:? (?!\s)",  # where it was logged
        r"[\w.-]+ (?=kernel: |slurmd|systemd|slurmctld|kubelet)",  # syslog's host
        r"(?P<tag>(?:kernel|kubelet|systemd|slurmd|slurmctld)(?:\[\d+\])?): ",
        r"[|]+\s*",
        r"\[\w[\w.-]*\]\s+(?=\[|\d{4}-)",
    )
)
_RANK_INSIDE: Final = re.compile(
    r"\[Rank (\d+)\]|\[PG ID .*? Rank (\d+)\]|\brank\s*:\s*(\d+) \(local_rank"
)
_LEVEL_WORD: Final = re.compile(r"(?:^|[\[ \-|])(DEBUG|INFO)(?:[\] :|]|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a log; `time_s` counts from the start of its year, because many logs omit it."""

    number: int
    text: str
    message: str
    rank: int | None = None
    time_s: float | None = None
    level: str | None = None


def without_colours(text: str) -> str:
    """A text without the escape sequences of a terminal."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def parse_line(text: str, number: int) -> Line:
    """The parts of one line. What is not recognised stays in the message."""
    message = without_colours(text).strip()
    rank: int | None = None
    local: int | None = None
    time_s: float | None = None
    level: str | None = None
    for _ in range(8):
        for pattern in (*_RANK_PREFIXES, *_TIME_PREFIXES, *_OTHER_PREFIXES):
            found = pattern.match(message) or (
                re.match(pattern.pattern, message, re.I) if pattern is _TIME_PREFIXES[1] else None
            )
            if found is None or found.end() >= len(message):
                continue
            parts = found.groupdict()
            if parts.get("rank") and rank is None:
                rank = int(parts["rank"])
            if parts.get("local"):
                local = int(parts["local"])
            if parts.get("h") and time_s is None:
                time_s = _seconds(parts)
            level = parts.get("level") or level
            message = message[found.end() :].lstrip()
            break
        else:
            break
    if rank is None:
        inside = _RANK_INSIDE.search(message)
        rank = int(next(filter(None, inside.groups()))) if inside else local
    if level is None:
        word = _LEVEL_WORD.search(message[:60])
        level = word[1] if word else None
    return Line(
        number=number, text=text.rstrip(), message=message, rank=rank, time_s=time_s, level=level
    )


def _seconds(parts: dict[str, str | None]) -> float | None:
    """Seconds since the start of the year; None for a time without a date."""
    month = _MONTHS.get((parts.get("mon") or "").lower()) or int(parts.get("mo") or 0)
    day = int(parts.get("d") or 0)
    if not month or not day:
        return None
    try:
        clock = (int(parts["h"] or 0), int(parts["mi"] or 0), int(parts["s"] or 0))
        whole = datetime(2000, month, day, *clock)  # a leap year has every date
    except ValueError:
        return None
    return (whole - datetime(2000, 1, 1)).total_seconds() + float(f"0.{parts.get('f') or 0}")
