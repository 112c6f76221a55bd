"""Numbers as people read them."""


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "–"


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def size(bytes_: int) -> str:
    """Bytes with three figures that matter: 512 B, 3.4 kB, 12.3 MB, 4.2 GB."""
    value = float(bytes_)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
