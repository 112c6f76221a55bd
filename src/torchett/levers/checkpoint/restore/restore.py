"""Restoring: the newest step whose every byte is right, the same one on all ranks.

    step 52 in memory    every rank's part right? ─ load ──► 53
       │                          no
    step 40 on storage   manifest whole? ─ sizes and CRCs? ─ load ──► 41
       │                          no              no
       └─ set aside, named, next older one …        none left: an error, not step 0

Nothing is unpickled before its bytes are known to be right.
"""

import logging
from collections import Counter
from collections.abc import Collection, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchett.levers.checkpoint.errors import CheckpointError
from torchett.levers.checkpoint.memory.left_over import Candidate, LeftOver, candidates
from torchett.levers.checkpoint.restore.loading import Stored, load
from torchett.levers.checkpoint.restore.prefetch import Prefetch, share
from torchett.levers.checkpoint.store_coordinator import Ranks
from torchett.levers.checkpoint.stored.catalog import Entry, entries, set_aside
from torchett.levers.checkpoint.stored.storage import Storage
from torchett.levers.checkpoint.upload.writer import METADATA

log = logging.getLogger("torchett")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What was loaded: the state after `step`; `tier` is memory, neighbour or durable.

    `tiers` counts ranks by where their part was; `nbytes` is what all of them read; `token` names
    a snapshot in memory; `refused` is what was newer, and why it was not loaded.
    """

    step: int
    tier: str
    tiers: dict[str, int]
    nbytes: int
    token: str | None = None
    refused: tuple[str, ...] = ()

    def said(self) -> str:
        """In words where it came from."""
        if self.tier == "durable":
            return "from storage"
        parts = (
            (self.tiers.get("memory", 0), "memory"),
            (self.tiers.get("neighbour", 0), "a copy on another node"),
        )
        return ", ".join(f"{n} rank{'s' * (n > 1)} from {what}" for n, what in parts if n)


def restore(
    state: MutableMapping[str, Any],
    tiers: Sequence[Storage],
    ranks: Ranks,
    prefetch: Prefetch,
    *,
    left: LeftOver | None = None,
    job: str | None = None,
    skip: Collection[str] = (),
    strict: bool = True,
    put_aside: bool = True,
) -> Restored | None:
    """What was loaded into `state`; None if there is no checkpoint at all.

    `left` is what the attempt before has left in memory, of the job with this name: None where
    another one may be at work.
    """
    stored = _candidates(tiers, ranks)
    in_memory = candidates(ranks.gather(left.report(job)), ranks.size) if left and job else []
    everything: list[Candidate | Entry] = [*in_memory, *stored]
    found = sorted(everything, key=lambda one: one.step, reverse=True)  # stable
    refused: list[str] = []
    for one in found:
        if isinstance(one, Candidate):
            assert left is not None
            restored = _from_memory(one, left, state, ranks, refused, skip=skip, strict=strict)
            if restored is not None:
                return restored
            continue
        problems = _problems(one, ranks, prefetch)
        if not problems:
            load(stored_at(one, prefetch), state, ranks, skip=skip, strict=strict)
            return Restored(
                step=one.step,
                tier="durable",
                tiers={"durable": ranks.size},
                nbytes=0 if one.manifest is None else one.manifest.size,
                refused=tuple(refused),
            )
        refused.append(f"{one.path}: {'; '.join(problems)}")
        if ranks.rank == 0 and put_aside:
            _put_aside(one, problems)
    if refused and stored:
        raise CheckpointError(
            f"{len(refused)} checkpoints were found and none can be loaded, so training does not "
            f"begin at step 0 by itself: {' | '.join(refused)[:1500]}. Move them away to begin anew"
        )
    return None


def _from_memory(
    one: Candidate,
    left: LeftOver,
    state: MutableMapping[str, Any],
    ranks: Ranks,
    refused: list[str],
    *,
    skip: Collection[str],
    strict: bool,
) -> Restored | None:
    """What was loaded, if every rank has its part right; what is wrong is added to `refused`."""
    from torchett.levers.checkpoint.restore.snapshot_reader import SnapshotReader

    part, error = left.part(one), None
    told = ranks.gather((part.where, part.problems, part.place))
    said = [f"rank {r}: {problem}" for r, (_, wrong, _) in enumerate(told) for problem in wrong]
    if ranks.rank == 0 and said:
        log.warning("torchett: of step %d in memory, %s", one.step, "; ".join(said)[:800])
    refused += [f"step {one.step} in memory: {problem}" for problem in said]
    if any(where is None for where, *_ in told):
        return None
    assert part.sealed is not None
    try:
        reader = SnapshotReader(part.sealed.head, part.memory)
        for rank in reader.elsewhere:  # this rank copied a part of what its node held alike
            of_rank = left.part_of(one, rank, told[rank][2])
            if of_rank.sealed is None:
                raise CheckpointError(f"the part of rank {rank}: {'; '.join(of_rank.problems)}")
            reader.add(rank, of_rank.sealed.head, of_rank.memory)
        own = Stored(
            path=f"the snapshot of step {one.step}",
            reader=reader,
            world_size=ranks.size,
            per_rank=frozenset(reader.per_rank),
            is_part=True,
        )
        load(own, state, ranks, skip=skip, strict=strict)
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"[:300]
    wrong = [f"rank {r}: {why}" for r, why in enumerate(ranks.gather(error)) if why is not None]
    if wrong:
        refused += [f"step {one.step} in memory: {why}" for why in wrong]
        if ranks.rank == 0:
            log.warning("torchett: step %d in memory is not used: %s", one.step, wrong[0])
        return None
    tiers = Counter(str(where) for where, *_ in told)
    return Restored(
        step=one.step,
        tier="neighbour" if tiers["neighbour"] else "memory",
        tiers=dict(tiers),
        nbytes=sum(ranks.gather(len(part.memory or b""))),
        token=one.token,
        refused=tuple(refused),
    )


def stored_at(entry: Entry, prefetch: Prefetch) -> Stored:
    """A verified checkpoint, to be loaded."""
    from torchett.levers.checkpoint.restore.reader import VerifiedReader

    assert entry.manifest is not None
    return Stored(
        path=entry.path,
        reader=VerifiedReader(entry, prefetch),
        world_size=entry.manifest.world_size,
        per_rank=frozenset(entry.manifest.per_rank),
    )


def _candidates(tiers: Sequence[Storage], ranks: Ranks) -> list[Entry]:
    """Every tier's checkpoints, newest first, as rank 0 sees them; the first tier's come first."""
    found: list[tuple[int, Entry]] = []
    trouble = None
    if ranks.rank == 0:
        try:
            for number, storage in enumerate(tiers):
                found += [(number, entry) for entry in entries(storage)]
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
    found.sort(key=lambda pair: (pair[1].step, pair[1].order[1], -pair[0]), reverse=True)
    told = [(n, e.name, e.order, e.manifest, e.problem) for n, e in found]
    trouble, told = ranks.gather((trouble, told))[0]
    if trouble is not None:
        raise CheckpointError(f"{tiers[0].root} cannot be listed: {trouble}")
    return [
        Entry(storage=tiers[n], name=name, order=order, manifest=manifest, problem=problem)
        for n, name, order, manifest, problem in told
    ]


def _problems(entry: Entry, ranks: Ranks, prefetch: Prefetch) -> list[str]:
    """What is wrong with a checkpoint; each rank reads its share of the files."""
    if entry.manifest is None:
        return [entry.problem]
    try:
        mine = prefetch.verified(entry, share(entry.manifest.files, ranks.rank, ranks.size))
    except Exception as error:
        mine = [f"cannot be read: {type(error).__name__}: {error}"]
    return [problem for problems in ranks.gather(mine) for problem in problems]


def _put_aside(entry: Entry, problems: list[str]) -> None:
    said = "; ".join(problems)
    foreign = entry.manifest is None and entry.storage.exists(f"{entry.name}/{METADATA}")
    if foreign and "missing" in entry.problem:
        log.warning("torchett: %s was not written by torchett: left alone", entry.path)
        return
    if any("cannot be read" in problem for problem in problems):
        log.warning("torchett: %s is not used: %s", entry.path, said)
        return
    try:
        aside = set_aside(entry, problems)
        log.warning("torchett: %s is corrupt (%s) and now %s", entry.path, said, aside)
    except OSError as error:
        log.warning("torchett: %s is corrupt (%s) and stays: %s", entry.path, said, error)
