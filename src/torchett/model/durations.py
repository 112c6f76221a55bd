"""Durations as text, the same in every report and message."""


def duration(ns: int) -> str:
    """A duration with about three significant digits: 840 ms, 12.3 s, 4.2 min, 3.1 h, 12 d."""
    s = ns / 1e9
    if s < 0.9995:
        return f"{s * 1e3:.3g} ms" if s else "0 s"
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (48 * 3600, 3600, "h")):
        if s < limit:
            return f"{s / size:.1f} {unit}" if s / size < 100 else f"{s / size:.0f} {unit}"
    return f"{s / 86400:.1f} d"


def duration_of_s(s: float) -> str:
    """The same for seconds."""
    return duration(round(s * 1e9))
