"""All compiles of a job in a few numbers, for its report.

{"graphs": 6, "compiles": 8, "background_s": 0.0,
 "accounts": {"pt2_compile": {"compiles": 2, "seconds": 18.0, "by_cause": {"dynamo": 0.2, …}},
              "recompile": {…}},
 "caches": {"autograd_cache": {"hit": 1, "miss": 6}, "fx_graph_cache": {"miss": 11}},
 "functions": [{"place": "f (a.py:5)", "compiles": 9, "seconds": 28.1, "reason": "…"}, …]}
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from torchett.levers.compile.observe.facts import CAUSES, Compile, from_json

_MOST_FUNCTIONS = 8


def compiles_in(facts: Iterable[tuple[int, int, Any]]) -> list[tuple[int, int, Compile]]:
    """(attempt, rank, compile) for each fact that is a compile."""
    found = ((attempt, rank, from_json(fact)) for attempt, rank, fact in facts)
    return [(attempt, rank, one) for attempt, rank, one in found if one is not None]


def summary(compiles: list[tuple[int, int, Compile]]) -> dict[str, Any] | None:
    """The numbers, as JSON; None if nothing was compiled."""
    if not compiles:
        return None
    booked = [one for _, _, one in compiles if not one.background]
    caches = defaultdict[str, Counter[str]](Counter)
    for _, _, one in compiles:
        for name, times in one.caches.items():
            cache, _, state = name.rpartition("_")
            caches[cache][state] += times
    return {
        "graphs": sum(one.part == "forward" for _, _, one in compiles),
        "compiles": len(compiles),
        "background_s": sum(one.ns for _, _, one in compiles if one.background) / 1e9,
        "accounts": {
            account: _account([one for one in booked if one.again == again])
            for account, again in (("pt2_compile", False), ("recompile", True))
            if any(one.again == again for one in booked)
        },
        "caches": {cache: dict(states) for cache, states in sorted(caches.items())},
        "functions": _functions(booked),
    }


def _account(compiles: list[Compile]) -> dict[str, Any]:
    return {
        "compiles": len(compiles),
        "seconds": sum(one.ns for one in compiles) / 1e9,
        "by_cause": {
            cause: ns / 1e9
            for cause in CAUSES
            if (ns := sum(one.by_ns.get(cause, 0) for one in compiles))
        },
    }


def _functions(compiles: list[Compile]) -> list[dict[str, Any]]:
    """The most expensive functions, each with its most expensive reason."""
    by_place = defaultdict[str, list[Compile]](list)
    for one in compiles:
        by_place[one.place].append(one)
    costly = sorted(by_place.items(), key=lambda item: -sum(one.ns for one in item[1]))
    found = []
    for place, its in costly[:_MOST_FUNCTIONS]:
        reasons = Counter[str]()
        for one in its:
            for reason in one.reasons[:1]:
                reasons[first_line(reason)] += one.ns
        found.append(
            {
                "place": place,
                "compiles": len(its),
                "seconds": sum(one.ns for one in its) / 1e9,
                "reason": max(reasons, key=lambda r: reasons[r]) if reasons else None,
            }
        )
    return found


def first_line(reason: str) -> str:
    """A reason without the id of its graph, user code and stack."""
    head = reason.partition("\n")[0].partition("  #")[0]
    number, colon, rest = head.partition(": ")
    is_id = colon and "/" in number and number.replace("/", "").replace("!", "").isalnum()
    return (rest if is_id else head).strip()
