"""Lines for a job's report from the ranks' notes on the library, one for each attempt.

compile cache, attempt 0: no archive yet; 0 hits, 2 misses; published f8d0b3d3
compile cache, attempt 1: archive f8d0b3d3 (exact, 0.1 MB, 0.09 s); 2 hits
compile cache, attempt 2: compiled cold, damaged: its entries do not match their sha256; …
compiled ahead by standbys, attempt 3: the models of 2 ranks
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any


def cache_lines(facts: Iterable[tuple[int, int, Any]]) -> list[str]:
    """A line for each attempt, from facts of kind `compile_cache`: (attempt, rank, fact)."""
    attempts = defaultdict[int, list[dict[str, Any]]](list)
    for attempt, _, fact in facts:
        if isinstance(fact, dict):
            attempts[attempt].append(fact)
    return [
        f"compile cache, attempt {attempt}: {_line(found)}"
        for attempt, found in sorted(attempts.items())
    ]


def standby_lines(facts: Iterable[tuple[int, int, Any]]) -> list[str]:
    """A line for each attempt, from facts of kind `standby_model`."""
    attempts = defaultdict[int, set[int]](set)
    for attempt, rank, _ in facts:
        attempts[attempt].add(rank)
    return [
        f"compiled ahead by standbys, attempt {attempt}: the models of {len(ranks)}"
        f" rank{'s' if len(ranks) > 1 else ''}"
        for attempt, ranks in sorted(attempts.items())
    ]


def _line(facts: list[dict[str, Any]]) -> str:
    loads = [fact for fact in facts if fact.get("event") == "load"]
    settled = [fact for fact in facts if fact.get("event") == "settle"]
    parts = [_load(loads)] if loads else []
    counts = {
        word: sum(int(fact.get(word) or 0) for fact in settled)
        for word in ("hits", "misses", "bypasses")
    }
    if settled:
        parts.append(", ".join(f"{n} {w}" for w, n in counts.items() if n or w == "hits"))
    published = [str(fact["published"])[:8] for fact in settled if fact.get("published")]
    if published:
        parts.append(f"published {', '.join(published)}")
    parts += sorted({f"not kept: {fact['reason']}" for fact in settled if fact.get("reason")})
    return "; ".join(parts)


def _load(loads: list[dict[str, Any]]) -> str:
    """The outcome of the load; if ranks differ, that of the ranks without an archive."""
    cold = [fact for fact in loads if fact.get("match") == "none"]
    if not cold:
        first = loads[0]
        seconds = float(first.get("download_s", 0)) + float(first.get("install_s", 0))
        size = f"{int(first.get('bytes', 0)) / 1e6:.1f} MB"
        name, match = str(first.get("archive"))[:8], first.get("match")
        return f"archive {name} ({match}, {size}, {seconds:.2f} s)"
    reasons = sorted({str(fact["reason"]) for fact in cold if fact.get("reason")})
    if not reasons:
        return "no archive yet"
    some = "" if len(cold) == len(loads) else f" by {len(cold)} of {len(loads)} ranks"
    return f"compiled cold{some}, {'; '.join(reasons)}"
