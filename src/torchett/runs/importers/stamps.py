"""Time stamps in text: the common ones found anywhere in a line, or as a user describes them.

    2024-04-29 06:18:02,707    2024-04-29T06:18:02.707Z    2024/04/29 06:18:02
    04/29/2024 06:18:02 (HF)   I0429 06:18:02.707 (glog)   1714371482.707 (at the line's start)

A stamp without a zone counts as UTC: only differences matter. One without a year takes 1970's.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime

from torchett.model.errors import InputError

Reader = Callable[[str], float | None]

_ISO = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r"\s?(Z|[+-]\d\d:?\d\d)?(?![\d:])"
)
_US = re.compile(r"(?<!\d)(\d\d)/(\d\d)/(\d{4}) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_GLOG = re.compile(r"(?:^|\s)[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9})")
_UNIX = re.compile(r"^\W?(1\d{9}(?:\.\d+)?)(?=\W|$)")


def stamp(text: str) -> float | None:
    """The first common time stamp in a line, as seconds since the epoch."""
    if found := _ISO.search(text):
        *parts, fraction, zone = found.groups()
        return _seconds([int(part) for part in parts], fraction, zone)
    if found := _US.search(text):
        month, day, year, *rest, fraction = found.groups()
        return _seconds([int(p) for p in (year, month, day, *rest)], fraction, None)
    if found := _GLOG.search(text):
        *parts, fraction = found.groups()
        return _seconds([1970, *(int(part) for part in parts)], fraction, None)
    if found := _UNIX.search(text):
        return float(found.group(1))
    return None


def _seconds(parts: list[int], fraction: str | None, zone: str | None) -> float | None:
    try:
        year, month, day, hour, minute, second = parts
        whole = datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:
        return None
    if zone and zone != "Z":
        hours, minutes = int(zone[1:3]), int(zone[-2:])
        whole -= (hours * 3600 + minutes * 60) * (-1 if zone[0] == "-" else 1)
    return whole + (float(f"0.{fraction}") if fraction else 0.0)


def given_time(text: str, option: str) -> float:
    """A time a user typed; InputError names the option."""
    found = stamp(text)
    if found is None:
        try:
            found = float(text)
        except ValueError:
            raise InputError(
                f"{option}: expected a time such as 2024-04-29T06:13:55Z or seconds since the"
                f" epoch, found '{text}'"
            ) from None
    return found


def reader(described: str) -> Reader:
    """How to find the time in a line: a strptime format, or a regular expression.

    Of an expression the group `time` (else the first, else all of it) is the time: seconds, or
    one of the common stamps.
    """
    if re.search(r"%[a-zA-Z]", described):
        pattern = re.compile(_as_pattern(described))

        def parse(line: str) -> float | None:
            found = pattern.search(line)
            if found is None:
                return None
            try:
                read = datetime.strptime(found.group(), described)
            except ValueError:
                return None
            return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()

        return parse
    expression = compiled(described, "--time")

    def search(line: str) -> float | None:
        found = expression.search(line)
        if found is None:
            return None
        text = group(found, "time")
        try:
            return float(text)
        except ValueError:
            return stamp(text)

    return search


def compiled(pattern: str, option: str) -> re.Pattern[str]:
    """A user's regular expression; InputError names the option it came by."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InputError(
            f"{option}: expected a regular expression, found '{pattern}': {error}"
        ) from None


def group(found: re.Match[str], name: str) -> str:
    """The group called `name`, else the first, else the whole match."""
    if name in found.re.groupindex:
        return found.group(name) or ""
    return (found.group(1) if found.re.groups else found.group()) or ""


_FIELDS = {
    "Y": r"\d{4}", "m": r"\d\d?", "d": r"\d\d?", "H": r"\d\d?", "M": r"\d\d", "S": r"\d\d",
    "f": r"\d{1,6}", "y": r"\d\d", "j": r"\d{1,3}", "I": r"\d\d?", "p": r"[AaPp][Mm]",
    "b": r"[A-Za-z]{3}", "B": r"[A-Za-z]+", "a": r"[A-Za-z]{3}", "A": r"[A-Za-z]+",
    "z": r"(?:Z|[+-]\d\d:?\d\d)", "Z": r"[A-Z]+", "%": "%",
}  # fmt: skip


def _as_pattern(described: str) -> str:
    """A regular expression that finds what the strptime format reads."""
    out, at = "", 0
    while at < len(described):
        if described[at] == "%" and at + 1 < len(described):
            field = _FIELDS.get(described[at + 1])
            if field is None:
                raise InputError(
                    f"--time: expected a strptime format, found '{described}' with"
                    f" %{described[at + 1]}"
                )
            out, at = out + field, at + 2
        else:
            out, at = out + re.escape(described[at]), at + 1
    return out
