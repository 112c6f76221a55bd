"""What an attempt that was killed has left in memory, and what all ranks of the next can use of it.

    node 0   keeper of rank 0: steps 40, 50    keeper of rank 1: 40, 50    copies of rank 2: 40, 50
    node 1   lost, and begun anew: nothing here
    →        step 50: ranks 0 and 1 from this node's memory, rank 2 from its neighbour

A snapshot counts if every rank's part of it is somewhere. Where a part lies in several places, the
nearest whose bytes are right is taken.
"""

import contextlib
import logging
import mmap
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from torchett.levers.checkpoint.memory import nearby, neighbour
from torchett.levers.checkpoint.memory.kept import Buffer, Sealed, SnapshotId
from torchett.levers.checkpoint.memory.plan import host, node
from torchett.levers.checkpoint.stored.checksum import PART, joined

log = logging.getLogger("torchett")

_THREADS = 4

Where = Literal["memory", "neighbour"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank's part of a snapshot lies."""

    id: SnapshotId
    own: bool
    node: str
    keeper: str
    address: tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a rank sees on its node."""

    places: tuple[Place, ...]
    secrets: frozenset[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A snapshot of which every rank's part is somewhere."""

    step: int
    token: str
    places: tuple[Place, ...]
    secrets: frozenset[bytes]


@dataclass(slots=True, kw_only=True)
class Part:
    """A rank's part of a snapshot, every byte as it was copied; or why there is none."""

    sealed: Sealed | None = None
    memory: mmap.mmap | None = None
    where: Where | None = None
    place: Place | None = None
    problems: list[str] = field(default_factory=list)


class LeftOver:
    """What this process finds; it begins to look, and to verify, at once."""

    def __init__(self, where: str, rank: int, size: int, *, usable: bool = True) -> None:
        self._where, self._rank, self._size = where, rank, size
        self._found: list[nearby.KeeperHere] = []
        self._verified: dict[tuple[str, int], Part] = {}
        self._listed = threading.Event()
        self._thread: threading.Thread | None = None
        if usable and nearby.any_here(where):
            self._thread = threading.Thread(target=self._look, name="ett-left-over", daemon=True)
            self._thread.start()
        else:
            self._listed.set()

    def _look(self) -> None:
        """Find the keepers, then take the checksum of this rank's newest snapshot."""
        try:
            self._found = nearby.left_here(self._where)
        except Exception as error:
            log.debug("torchett: no keepers of snapshots are seen: %s", error)
        finally:
            self._listed.set()
        places = [p for p in self._places(None) if p.id.rank == self._rank]
        if places:
            best = max(places, key=lambda place: (place.id.step, place.own))
            part = Part()
            _try(part, best, frozenset(), best.node)
            if part.sealed is not None:
                self._verified[best.id.token, self._rank] = part

    def newest_step(self) -> int:
        """The newest step of which this rank's part is on this node; -1 without one."""
        self._listed.wait()
        mine = (p.id.step for p in self._places(None) if p.id.rank == self._rank)
        return max(mine, default=-1)

    def secrets(self) -> frozenset[bytes]:
        """What the keepers on this node know of each other by."""
        self._listed.wait()
        return frozenset(one.secret for one in self._found)

    def held_bytes(self) -> int:
        """The memory that is held here for the ranks of this node."""
        self._listed.wait()
        return sum(one.held_bytes for one in self._found)

    def end_but(self, job: str | None) -> None:
        """End keepers that are of another job than this one."""
        for keeper in self._found:
            if keeper.job != job:
                with contextlib.suppress(OSError, EOFError, ValueError):
                    nearby.end(keeper.name)

    def report(self, job: str | None) -> NodeReport:
        """What is here of this job, for the other ranks."""
        self._listed.wait()
        return NodeReport(
            places=tuple(self._places(job)),
            secrets=frozenset(one.secret for one in self._found if one.job == job),
        )

    def _places(self, job: str | None) -> Iterator[Place]:
        """Where snapshots of as many ranks as there are now lie on this node."""
        here, at = node(), host()
        for keeper in self._found:
            for held in keeper.snapshots:
                if held.sealed.id.world_size == self._size and job in (None, keeper.job):
                    yield Place(
                        id=held.sealed.id,
                        own=held.own,
                        node=here,
                        keeper=keeper.name,
                        address=(at, keeper.port),
                    )

    def part(self, candidate: Candidate) -> Part:
        """This rank's part, from the nearest place that has it right."""
        if self._thread is not None:
            self._thread.join()
        known = self._verified.pop((candidate.token, self._rank), None)
        return known or self._nearest(candidate, self._rank)

    def part_of(self, candidate: Candidate, rank: int, verified: Place | None) -> Part:
        """Another rank's part; where it lies on this node, that rank has compared every byte."""
        if verified is not None and verified.node == node():
            part = Part()
            _try(part, verified, candidate.secrets, verified.node, compare=False)
            if part.sealed is not None:
                return part
        return self._nearest(candidate, rank)

    def _nearest(self, candidate: Candidate, rank: int) -> Part:
        part, here = Part(), node()
        of_rank = [place for place in candidate.places if place.id.rank == rank]
        for place in sorted(of_rank, key=lambda p: (p.node != here, not p.own)):
            _try(part, place, candidate.secrets, here)
            if part.sealed is not None:
                break
        return part

    def forget(self, but: str | None) -> None:
        """Drop what was not restored: it is of no history that goes on."""
        self._verified.clear()
        for keeper in self._found:
            with contextlib.suppress(OSError, EOFError, ValueError):
                nearby.forget(keeper.name, but)


def candidates(reports: Sequence[NodeReport], size: int) -> list[Candidate]:
    """The snapshots that all ranks together have, newest first."""
    found: dict[tuple[int, str], dict[Place, None]] = defaultdict(dict)
    for report in reports:
        for place in report.places:
            found[place.id.step, place.id.token][place] = None
    secrets = frozenset[bytes]().union(*(report.secrets for report in reports))
    return [
        Candidate(step=step, token=token, places=tuple(places), secrets=secrets)
        for (step, token), places in sorted(found.items(), reverse=True)
        if {place.id.rank for place in places} >= set(range(size))
    ]


def _try(
    part: Part, place: Place, secrets: frozenset[bytes], here: str, compare: bool = True
) -> None:
    """Get the part from there and compare it; what is wrong is added to its problems."""
    near = place.node == here
    said = "this node's memory" if near and place.own else f"the copy on {place.address[0]}"
    try:
        if near:
            sealed, buffer = nearby.mapped(place.keeper, place.id.token, place.id.rank)
        else:
            sealed, buffer = _fetched(place, secrets)
    except (OSError, EOFError, ValueError, KeyError) as error:
        part.problems.append(f"{said}: {type(error).__name__}: {error}")
        return
    memory = buffer.map()
    buffer.close()
    crc = _crc(sealed, memory) if compare else sealed.crc32
    if crc != sealed.crc32 or sealed.id != place.id:
        part.problems.append(f"{said} has CRC {crc:08x}, {sealed.crc32:08x} was taken")
        memory.close()
        return
    part.sealed, part.memory, part.place = sealed, memory, place
    part.where = "memory" if near and place.own else "neighbour"


def _fetched(place: Place, secrets: frozenset[bytes]) -> tuple[Sealed, Buffer]:
    error: Exception = ValueError("no secret of this job is known")
    for secret in secrets:
        try:
            return neighbour.get(place.address, secret, place.id.token, place.id.rank)
        except PermissionError as refused:
            error = refused
    raise error


def _crc(sealed: Sealed, memory: mmap.mmap) -> int:
    """The checksum of what is there now, by several threads."""

    def of_part(at: int) -> tuple[int, int]:
        end = min(at + PART, sealed.size)
        with memoryview(memory) as view, view[at:end] as part:
            return zlib.crc32(part), end - at

    crc = zlib.crc32(sealed.head)
    with ThreadPoolExecutor(_THREADS, "ett-crc") as pool:
        for part, length in pool.map(of_part, range(0, sealed.size, PART)):
            crc = joined(crc, part, length)
    return crc
