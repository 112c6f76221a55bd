"""The costs of start-up's communication, from the audits of all ranks.

    rank 0   ├ call k ──────────┤           wait = last arrival − own arrival, at most the call
    rank 1         ├ call k ────┤           work = the rest
    rank 2               ├ k ───┤
                         └ the last arrival

All members of a group run its collectives in the same order, so the k-th calls of all ranks belong
together. If they do not match (names differ, or some calls of a rank are unknown), the time of the
rest of that group's calls is not split.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchett.levers.communication.collectives import OBJECT_COLLECTIVES
from torchett.levers.communication.groups import PREFIX
from torchett.model.durations import duration

_MANY = 8  # object collectives from one call site that make a finding
_LONG_NS = 100_000_000  # waiting per rank at one call site that makes a finding

Noted = tuple[int, int, int, Any]
"""Attempt, rank, the offset from its clock to the job's clock, and the recorded fact."""


@dataclass(slots=True, kw_only=True)
class Site:
    """The costs of one function called from one place, summed over ranks."""

    name: str
    where: str  # FILE:LINE below torch
    user: str  # FILE:LINE in the user's own code
    calls: int = 0  # of the rank with the most calls
    ranks: int = 0
    wait_ns: int = 0
    work_ns: int = 0
    unsplit_ns: int = 0
    bytes: int = 0
    last: Counter[int] = field(default_factory=Counter)  # rank → how often it arrived last
    kept_ns: Counter[int] = field(default_factory=Counter)  # rank → time that others waited for it

    @property
    def total_ns(self) -> int:
        return self.wait_ns + self.work_ns + self.unsplit_ns

    @property
    def per_rank_ns(self) -> int:
        return self.total_ns // max(self.ranks, 1)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "where": self.where,
            "user": self.user,
            "calls": self.calls,
            "ranks": self.ranks,
            "wait_s": self.wait_ns / 1e9,
            "work_s": self.work_ns / 1e9,
            "unsplit_s": self.unsplit_ns / 1e9,
            "per_rank_s": self.per_rank_ns / 1e9,
            "bytes": self.bytes,
            "last": {str(rank): n for rank, n in self.last.most_common(8)},
            "waited_for_s": {str(rank): ns / 1e9 for rank, ns in self.kept_ns.most_common(8)},
        }


@dataclass(slots=True, kw_only=True)
class Group:
    """A process group, from the records of its members."""

    name: str
    ranks: str
    backend: str
    where: str
    user: str
    took_ns: int  # of the member that took longest
    is_world: bool = False
    uses: int | None = None  # collectives it ran, the most of any member; None: unknown
    settled: bool = False  # `uses` was read at the end of the group or of the process

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ranks": self.ranks,
            "backend": self.backend,
            "where": self.where,
            "user": self.user,
            "took_s": self.took_ns / 1e9,
            "uses": self.uses,
            "uses_until": "end" if self.settled else "first step",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A possible saving: its kind, the advice, and the time that a rank would win."""

    kind: str
    text: str
    won_ns: int

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "text": self.text, "won_s": self.won_ns / 1e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """The communication of one attempt's start-up; sites and findings by cost."""

    attempt: int
    ranks: tuple[int, ...]
    sites: tuple[Site, ...]
    groups: tuple[Group, ...]
    findings: tuple[Finding, ...]
    native: tuple[tuple[str, str, int, int], ...] = ()  # group, operation, calls, bytes a rank

    def to_json(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "ranks": list(self.ranks),
            "calls": sum(site.calls for site in self.sites),
            "per_rank_s": sum(site.total_ns for site in self.sites) / 1e9 / max(len(self.ranks), 1),
            "sites": [site.to_json() for site in self.sites],
            "groups": [group.to_json() for group in self.groups],
            "findings": [finding.to_json() for finding in self.findings],
            "native": [
                {"group": group, "operation": operation, "calls": calls, "bytes": size}
                for group, operation, calls, size in self.native
            ],
        }


@dataclass(frozen=True, slots=True)
class _Call:
    site: int
    t0_ns: int
    took_ns: int
    bytes: int
    asynchronous: bool


@dataclass(slots=True)
class _Rank:
    """All records of one rank."""

    sites: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    calls: "defaultdict[str | None, list[_Call]]" = field(default_factory=lambda: defaultdict(list))
    more: "defaultdict[int, list[int]]" = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    groups: list[dict[str, Any]] = field(default_factory=list)
    uses: dict[str, tuple[int | None, bool]] = field(default_factory=dict)
    native: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)


def communication(
    noted: Iterable[Noted],
    *,
    attempt: int | None = None,
    first_step_ns: Mapping[tuple[int, int], int] | None = None,
) -> Communication | None:
    """The communication of an attempt (by default the last with an audit); None without records.

    `first_step_ns` holds the begin of the first step of (attempt, rank): later calls do not count.
    """
    by_attempt: defaultdict[int, dict[int, _Rank]] = defaultdict(dict)
    for number, rank, offset_ns, fact in noted:
        _take(by_attempt[number].setdefault(rank, _Rank()), offset_ns, fact)
    if attempt is None:
        attempt = max(by_attempt, default=0)
    ranks = by_attempt.get(attempt)
    if not ranks:
        return None
    until = {rank: t for (number, rank), t in (first_step_ns or {}).items() if number == attempt}
    sites = _sites(ranks, until)
    groups = _groups(ranks)
    return Communication(
        attempt=attempt,
        ranks=tuple(sorted(ranks)),
        sites=tuple(sites),
        groups=tuple(groups),
        findings=tuple(_findings(sites, groups)),
        native=tuple(_native(ranks)),
    )


def _take(rank: _Rank, offset_ns: int, fact: Any) -> None:
    for number, name, where, user in fact.get("sites", ()):
        rank.sites[int(number)] = (str(name), str(where), str(user))
    base = int(fact.get("base_ns", 0)) + offset_ns
    for site, channel, t0_us, took_us, size, asynchronous in fact.get("calls", ()):
        call = _Call(
            int(site), base + int(t0_us) * 1000, int(took_us) * 1000, int(size), bool(asynchronous)
        )
        rank.calls[channel].append(call)
    for site, calls, us in fact.get("more", ()):
        counted = rank.more[int(site)]
        counted[0] += int(calls)
        counted[1] += int(us) * 1000
    rank.groups += fact.get("groups", ())
    for group, operation, calls, size in fact.get("native", ()):
        rank.native[str(group), str(operation)] = (int(calls), int(size))
    for name, count in fact.get("uses", {}).items():
        if not rank.uses.get(name, (None, False))[1]:
            rank.uses[name] = (count, bool(fact.get("final")))


def _sites(ranks: Mapping[int, _Rank], until: Mapping[int, int]) -> list[Site]:
    """The call sites, the most expensive first."""
    found: dict[tuple[str, str, str], Site] = {}
    counts: defaultdict[tuple[str, str, str], Counter[int]] = defaultdict(Counter)

    def site_of(rank: int, number: int) -> tuple[tuple[str, str, str], Site]:
        key = ranks[rank].sites.get(number, ("?", "?", "?"))
        if key not in found:
            found[key] = Site(name=key[0], where=key[1], user=key[2])
        return key, found[key]

    for channel in {channel for one in ranks.values() for channel in one.calls}:
        calls = {
            rank: sorted(one.calls[channel], key=lambda call: call.t0_ns)
            for rank, one in ranks.items()
            if channel in one.calls
        }
        matched = _matched(ranks, calls) if channel is not None else 0
        for rank, mine in calls.items():
            for k, call in enumerate(mine):
                if call.t0_ns >= until.get(rank, call.t0_ns + 1):
                    break
                key, site = site_of(rank, call.site)
                counts[key][rank] += 1
                site.bytes += call.bytes
                if k >= matched or call.asynchronous:
                    site.unsplit_ns += call.took_ns
                    continue
                last = max(calls, key=lambda other: calls[other][k].t0_ns)
                wait = min(max(calls[last][k].t0_ns - call.t0_ns, 0), call.took_ns)
                site.wait_ns += wait
                site.kept_ns[last] += wait
                site.work_ns += call.took_ns - wait
                if last == rank and len(calls) > 1:
                    site.last[rank] += 1
    for rank, one in ranks.items():
        for number, (n, ns) in one.more.items():
            key, site = site_of(rank, number)
            counts[key][rank] += n
            site.unsplit_ns += ns
    for key, site in found.items():
        site.calls, site.ranks = max(counts[key].values(), default=0), len(counts[key])
    kept = [site for site in found.values() if site.calls]
    return sorted(kept, key=lambda site: (-site.total_ns, site.where, site.name))


def _matched(ranks: Mapping[int, _Rank], calls: Mapping[int, Sequence[_Call]]) -> int:
    """The number of calls, from the first on, that are the same on every rank."""
    for k, row in enumerate(zip(*calls.values(), strict=False)):
        known = (ranks[rank].sites.get(call.site) for rank, call in zip(calls, row, strict=True))
        if len({site and site[0] for site in known}) != 1:
            return k
    return min((len(mine) for mine in calls.values()), default=0)


def _native(ranks: Mapping[int, _Rank]) -> Iterable[tuple[str, str, int, int]]:
    """The counts of the flight recorders, for each row from the rank with the most."""
    keys = {key: None for one in ranks.values() for key in one.native}
    for group, operation in keys:
        seen = (one.native.get((group, operation), (0, 0)) for one in ranks.values())
        yield group, operation, *max(seen)


def _groups(ranks: Mapping[int, _Rank]) -> list[Group]:
    """The groups in the order in which they were made."""
    made: dict[str, Group] = {}
    for one in ranks.values():
        for fact in one.groups:
            name, took = str(fact["name"]), int(fact["took_ns"])
            if name in made:
                made[name].took_ns = max(made[name].took_ns, took)
                continue
            maker, where, user = one.sites.get(int(fact["site"]), ("?", "?", "?"))
            made[name] = Group(
                name=name,
                ranks=str(fact["ranks"]),
                backend=str(fact["backend"]),
                where=where,
                user=user,
                took_ns=took,
                is_world=maker == "init_process_group",
            )
    for name, group in made.items():
        noted = [one.uses[name] for one in ranks.values() if name in one.uses]
        known = [count for count, _ in noted if count is not None]
        if known and len(known) == len(noted):  # a member without a count may have used it
            group.uses = max(known)
            group.settled = all(final for _, final in noted)
    return sorted(made.values(), key=lambda group: (not group.name.isdigit(), len(group.name)))


def _findings(sites: Sequence[Site], groups: Sequence[Group]) -> list[Finding]:
    """The possible savings, the largest first."""
    found = [*_too_many(sites), *_late(sites), *_twins(groups), *_unused(groups)]
    return sorted(found, key=lambda finding: -finding.won_ns)


def _too_many(sites: Sequence[Site]) -> Iterable[Finding]:
    for site in sites:
        if site.name not in OBJECT_COLLECTIVES or site.calls < _MANY:
            continue
        work_ns = (site.work_ns + site.unsplit_ns) // max(site.ranks, 1)
        rows = f"{site.calls} {site.name}s at {_place(site)} cost {duration(site.per_rank_ns)}"
        if "torchrec" in site.where:
            hint = "the sharding plan has these values (torchett.levers.communication.torchrec)"
        elif site.name == "all_gather_object":
            hint = "one gather for all (ett.gather_objects_together), or one broadcast, is enough"
        else:
            hint = "one is enough"
        won_ns = work_ns * (site.calls - 1) // site.calls
        yield Finding(kind="too_many", text=f"{rows}: {hint}", won_ns=won_ns)


def _late(sites: Sequence[Site]) -> Iterable[Finding]:
    for site in sites:
        for rank, kept_ns in site.kept_ns.most_common(1):
            wait_ns = kept_ns // max(site.ranks - 1, 1)
            if wait_ns < _LONG_NS or 2 * kept_ns <= site.wait_ns:
                continue  # short, or not mainly because of one rank
            of = f"{site.last[rank]} of {site.calls} " if site.calls > 1 else ""
            planned = "torchrec" in site.where and site.name == "broadcast_object_list"
            hint = (
                " (a stored plan avoids this: torchett.levers.communication.sharding_plans)"
                if planned
                else ""
            )
            text = (
                f"rank {rank} was last at {of}{site.name} at {_place(site)}:"
                f" the others waited {duration(wait_ns)} each{hint}"
            )
            yield Finding(kind="late", text=text, won_ns=wait_ns)


def _twins(groups: Sequence[Group]) -> Iterable[Finding]:
    same: defaultdict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in groups:
        if not group.is_world:
            same[group.ranks, group.backend].append(group)
    for (ranks, backend), twins in same.items():
        if len(twins) > 1:
            places = ", ".join(dict.fromkeys(_place(group) for group in twins))
            text = (
                f"{len(twins)} {backend} groups of the same ranks {ranks}, made at {places}:"
                " one may be enough (ett.lazy_groups)"
            )
            won_ns = sum(group.took_ns for group in twins[1:])
            yield Finding(kind="same_group", text=text, won_ns=won_ns)


def _unused(groups: Sequence[Group]) -> Iterable[Finding]:
    for group in groups:
        if group.uses == 0 and not group.is_world and not group.name.startswith(PREFIX):
            when = "never used" if group.settled else "not used before the first step"
            text = (
                f"the {group.backend} group of ranks {group.ranks} made at {_place(group)}"
                f" was {when}: make it at its first use (ett.lazy_groups)"
            )
            yield Finding(kind="unused_group", text=text, won_ns=group.took_ns)


def _place(made: Site | Group) -> str:
    """The line that called torch, and the line of the user's code if that is another one."""
    return made.where if made.user == made.where else f"{made.where} (from {made.user})"
