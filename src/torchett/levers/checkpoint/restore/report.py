"""What restarts were restored from, and what was unsaved, for a job's report.

restored, attempt 1: step 59 from memory (2 ranks); 1.31 rank-seconds unsaved
restored, attempt 2: step 40 from storage (2 ranks); 25.02 rank-seconds unsaved; refused: step 59 …
unsaved by tier: memory 1.31 s · storage 25.02 s
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

_WORDS = {"memory": "memory", "neighbour": "another node's memory", "durable": "storage"}
_NOTHING = "nothing"  # what an attempt was restored from that began at step 0


def restored_by_attempt(facts: Iterable[tuple[int, int, Any]]) -> dict[int, dict[str, Any]]:
    """The fact of the lowest rank of each attempt, of kind `checkpoint_restored`."""
    found: dict[int, tuple[int, dict[str, Any]]] = {}
    for attempt, rank, fact in facts:
        known = found.get(attempt)
        if isinstance(fact, dict) and "tier" in fact and (known is None or rank < known[0]):
            found[attempt] = rank, fact
    return {attempt: fact for attempt, (_, fact) in sorted(found.items())}


def unsaved_by_tier(
    restored: Mapping[int, dict[str, Any]], unsaved_ns: Mapping[int | None, int]
) -> dict[str, float]:
    """Rank-seconds that were unsaved, by the tier that the attempt after them was restored from.

    `unsaved_ns` are by the attempt that resumed; None: no attempt has.
    """
    sums: Counter[str] = Counter()
    for attempt, ns in unsaved_ns.items():
        fact = None if attempt is None else restored.get(attempt)
        sums[_NOTHING if fact is None else str(fact["tier"])] += ns
    return {tier: ns / 1e9 for tier, ns in sums.items()}


def restore_lines(
    restored: Mapping[int, dict[str, Any]], unsaved_ns: Mapping[int | None, int]
) -> list[str]:
    """A line an attempt that was restored, and the sums."""
    lines = [
        f"restored, attempt {attempt}: step {fact['step']} from {_from(fact)}"
        f"; {unsaved_ns.get(attempt, 0) / 1e9:,.2f} rank-seconds unsaved{_refused(fact)}"
        for attempt, fact in restored.items()
    ]
    sums = unsaved_by_tier(restored, unsaved_ns)
    if restored and sums:
        named = sorted((_WORDS.get(tier, tier), seconds) for tier, seconds in sums.items())
        told = " · ".join(f"{name} {seconds:,.2f} s" for name, seconds in named)
        lines.append(f"unsaved by tier: {told}")
    return lines


def memory_line(facts: Iterable[tuple[int, int, Any]]) -> list[str]:
    """How much memory the copies of the state took, in the last attempt that noted it."""
    attempts: dict[int, dict[int, dict[str, Any]]] = {}
    for attempt, rank, fact in facts:
        if isinstance(fact, dict) and "bytes" in fact:
            attempts.setdefault(attempt, {})[rank] = fact
    if not attempts:
        return []
    ranks = attempts[max(attempts)]
    held = sum(int(fact["bytes"]) for fact in ranks.values())
    size = f"{held / 2**30:.2f} GiB" if held >= 2**30 else f"{held / 2**20:.1f} MiB"
    copies = min(int(fact["buffers"]) for fact in ranks.values())
    beside = any(fact["neighbour"] for fact in ranks.values())
    return [
        f"checkpoints held {size} of memory on {len(ranks)} rank{'s'[: len(ranks) > 1]}: "
        f"{copies} cop{'ies' if copies != 1 else 'y'} of each state"
        f"{', and copies of other nodes' + chr(39) if beside else ''}"
    ]


def _from(fact: dict[str, Any]) -> str:
    tiers = fact.get("tiers") or {fact["tier"]: 0}
    parts = []
    for tier, ranks in tiers.items():
        many = f" ({ranks} rank{'s' if ranks != 1 else ''})" if ranks else ""
        parts.append(f"{_WORDS.get(tier, tier)}{many}")
    return " and ".join(parts)


def _refused(fact: dict[str, Any]) -> str:
    refused = [str(one) for one in fact.get("refused") or ()]
    return f"; refused: {' | '.join(refused)[:200]}" if refused else ""
