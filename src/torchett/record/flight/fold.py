"""Entries of the ring folded into frames of the log: a million steps in a few hundred kilobytes.

    entries   w═s───s w═s───s ckpt w═s───s w═s───s …       (w: waiting for data, s: a step)
    frames    ┌ data_wait ×2 ┐ gap ┌ steps 7–8 ┐ ckpt …

A folded block keeps its window and the exact time of every account in it; inside the window the
pieces are laid out again: spans first, then what was neither, then the steps. That is exact as
long as no other interval has one end inside the window, so the entries are cut wherever one does:

    long spans, the first step, checkpoints' steps     stay as they are
    entries that come after (`ahead`), spans and steps that are not over (`open_since`)

    x-thread          ├──────────────────────── …      not over yet
    steps   ├─┤ ├─┤ ├─┼─┤ ├─┤ ├─┤
            ╰block╯ alone ╰block╯
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import le, sub, truediv

from torchett.model.accounts import INDEX
from torchett.model.overlap import latest_wins
from torchett.record.flight.format import (
    ACCOUNT_SHIFT,
    BACKGROUND,
    CHECKPOINT,
    COUNT_SHIFT,
    ENTRY,
    FRAME,
    SPAN,
    STEP,
    Entry,
    meta,
)

LONG_NS = 100_000_000  # a span this long is kept by itself,
LONG_STEP_NS = 1_000_000_000  # and so is a step this long, if it is so many times the median:
LONG_STEP_TIMES = 10
DATA_WAIT = INDEX["data_wait"]
ONE_STEP = meta(STEP)
_WITHOUT_COUNT = (1 << COUNT_SHIFT) - 1  # of an entry's meta
_KEPT = frozenset(INDEX[name] for name in ("checkpoint_blocked", "final_checkpoint", "evaluation"))


def plain(entries: Iterable[Entry]) -> bytes:
    """Frames for the entries one by one, nothing folded."""
    return b"".join(_frames(entry) for entry in entries)


def fold_uniform(
    raw: bytes, begin: int, ahead: bytes, open_since: Sequence[int], behind: int
) -> bytes | None:
    """Frames for raw entries from `begin` on that are nothing but steps in turn; else None.

    The usual case, done by column: some 50 µs for half a ring.
    """
    size = len(raw) // ENTRY.size
    flat = struct.unpack(f"<{6 * size}q", raw)
    waits, begins, ends, indices, metas, seqs = (flat[k::6] for k in range(6))
    counts = [what >> COUNT_SHIFT for what in metas]
    if (
        size == 0
        or any(what & _WITHOUT_COUNT != STEP for what in metas)
        or seqs != tuple(range(begin + 1, begin + 1 + size))
        or indices != tuple(accumulate(counts[:-1], initial=indices[0]))
        or not all(map(le, ends, waits[1:]))
        or waits[0] < behind
        or any(waits[0] < t < ends[-1] for t in open_since)
    ):
        return None
    later = memoryview(ahead).cast("q")
    if later and min(later[0::6].tolist()) < ends[-1]:
        return None
    kinds = later[4::6].tolist()
    if kinds.count(ONE_STEP) < len(kinds):  # a checkpoint may be of one of these steps
        saved = [k for k, what in enumerate(kinds) if what & 0xFF == CHECKPOINT]
        if any(indices[0] <= later[6 * k + 3] < indices[0] + sum(counts) - 1 for k in saved):
            return None
    if max(ends[k] - begins[k] for k in range(size)) > LONG_STEP_NS and _long_steps(
        tuple(zip(waits, begins, ends, indices, metas, seqs, strict=True))
    ):
        return None
    waited = sum(begins) - sum(waits)
    frames = b""
    if waited:
        frames = span_frame(SPAN, DATA_WAIT, waits[0], waits[0] + waited, sum(counts))
    return frames + _run(begins, ends, counts, sum(ends) - sum(begins), indices[0])


def fold(
    entries: Sequence[Entry],
    ahead: Sequence[Entry] = (),
    open_since: Sequence[int] = (),
    first: bool = False,
    behind: int = 0,
) -> bytes:
    """Frames for the entries, short ones folded together.

    `first`: the first step is among them. `behind`: how far the entries reach that were folded
    before; what began earlier than that may lie around them, and stays as it is.
    """
    items = [e for e in entries if e[4] & 0xFF in (STEP, SPAN)]
    long = _long_steps(items)
    alone = [_is_kept(e) or e[0] < behind or e[5] in long for e in items]
    if first:
        at = next((i for i, e in enumerate(items) if e[4] & 0xFF == STEP), None)
        if at is not None:
            alone[at] = True
    # Of two spans of the very same time the later record owns it: they stay in their order.
    kept = {(e[1], e[2]) for e, lone in zip(items, alone, strict=True) if lone}
    alone = [
        lone or (e[4] & 0xFF == SPAN and (e[1], e[2]) in kept)
        for e, lone in zip(items, alone, strict=True)
    ]
    outside = [e for e in ahead if e[4] & 0xFF in (STEP, SPAN)]
    resumes = {e[3] for e in (*entries, *ahead) if e[4] & 0xFF == CHECKPOINT}
    groups = _groups(items, alone, outside, open_since, resumes)
    while _set_apart(groups, items, alone):
        groups = _groups(items, alone, outside, open_since, resumes)

    # Frames in the order of the entries, which settles ties; a block comes where its last one was.
    out = [(e[5], _frames(e)) for e, lone in zip(items, alone, strict=True) if lone]
    out += [(e[5], _frames(e)) for e in entries if e[4] & 0xFF == CHECKPOINT]
    for group in groups:
        if len(group) > 2:
            out.append((group[-1][5], _block(group)))
        else:
            out += [(e[5], _frames(e)) for e in group]
    out.sort(key=lambda piece: piece[0])
    background = [e for e in entries if e[4] & 0xFF == BACKGROUND]
    return b"".join(frames for _, frames in out) + _background(background)


def _groups(
    items: Sequence[Entry],
    alone: list[bool],
    outside: Sequence[Entry],
    open_since: Sequence[int],
    resumes: set[int],
) -> list[list[Entry]]:
    """Runs of entries to fold into one block each. Marks as alone what lies across a cut."""
    cuts = sorted({t for e in outside for t in _ends(e)} | set(open_since))
    for e, lone in zip(items, alone, strict=True):
        if lone:
            cuts += _ends(e)
    cuts.sort()
    again = bool(cuts)
    while again:
        again = False
        for i, e in enumerate(items):
            if not alone[i] and bisect_right(cuts, e[0]) < bisect_left(cuts, e[2]):
                alone[i] = again = True
                cuts += _ends(e)
                cuts.sort()
    groups: list[list[Entry]] = []
    where: int | None = None
    expected: int | None = None  # the index the next step must have
    for e, lone in zip(items, alone, strict=True):
        if lone:
            continue
        step = e[4] & 0xFF == STEP
        place = bisect_right(cuts, e[0])
        if place != where or (step and expected is not None and e[3] != expected):
            groups.append([])
            where, expected = place, None
        groups[-1].append(e)
        if step:
            expected = e[3] + (e[4] >> COUNT_SHIFT)
            if expected - 1 in resumes:
                where = expected = None
    return groups


def _set_apart(groups: list[list[Entry]], items: Sequence[Entry], alone: list[bool]) -> bool:
    """Mark as alone what keeps a group from being a block; False if all of them are sound.

    A block ends where its last step ends, and no two blocks' windows overlap.
    """
    apart: set[int] = set()
    windows = []
    for group in groups:
        steps = [e[2] for e in group if e[4] & 0xFF == STEP]
        last = max(steps, default=None)
        if last is not None:
            apart |= {e[5] for e in group if e[2] > last}
        windows.append((min(e[0] for e in group), max(e[2] for e in group), group))
    windows.sort(key=lambda window: window[:2])
    reach, previous = None, None
    for lo, hi, group in windows:
        if reach is not None and lo < reach and previous is not None:
            apart |= {e[5] for e in (*group, *previous)}
        if reach is None or hi > reach:
            reach, previous = hi, group
    for i, e in enumerate(items):
        alone[i] = alone[i] or e[5] in apart
    return bool(apart)


def _ends(e: Entry) -> tuple[int, ...]:
    """Where the intervals of an entry begin and end: a step's wait and the step."""
    return (e[0], e[1], e[2])


def _is_kept(e: Entry) -> bool:
    account = e[4] >> ACCOUNT_SHIFT & 0xFFFF
    return e[4] & 0xFF == SPAN and (e[2] - e[1] >= LONG_NS or account in _KEPT)


def _long_steps(items: Sequence[Entry]) -> set[int]:
    """The steps (by their seq) that a reader names, because they may hold something else."""
    took = {
        e[5]: (e[2] - e[1]) // max(e[4] >> COUNT_SHIFT, 1) for e in items if e[4] & 0xFF == STEP
    }
    if not took or max(took.values()) <= LONG_STEP_NS:
        return set()
    median = sorted(took.values())[len(took) // 2]
    long = max(LONG_STEP_NS, LONG_STEP_TIMES * median)
    return {seq for seq, ns in took.items() if ns > long}


def _block(group: Sequence[Entry]) -> bytes:
    """One block: the group's window, with each account's exact time in it."""
    steps = [e for e in group if e[4] & 0xFF == STEP]
    spans = [e for e in group if e[4] & 0xFF == SPAN]
    waits, begins, ends = ([e[k] for e in steps] for k in range(3))
    if spans or not all(map(le, ends, waits[1:])):
        times, net = _swept(group)
    else:
        times, net = {DATA_WAIT: sum(begins) - sum(waits)}, sum(ends) - sum(begins)
    steps_of = [e[4] >> COUNT_SHIFT for e in steps]
    counts = {DATA_WAIT: max(sum(steps_of), 1)}
    for e in spans:
        account = e[4] >> ACCOUNT_SHIFT & 0xFFFF
        counts[account] = counts.get(account, 0) + 1
    frames = b""
    at = min([*waits, *(e[1] for e in spans)])
    for account, ns in times.items():
        if ns:
            frames += span_frame(SPAN, account, at, at + ns, counts[account])
            at += ns
    if steps:
        frames += _run(begins, ends, steps_of, net, steps[0][3])
    return frames


def _run(
    begins: Sequence[int], ends: Sequence[int], counts: Sequence[int], net: int, index: int
) -> bytes:
    """The frame of a run of steps: their net time, laid so that it ends where the last one does."""
    took = sorted(map(truediv, map(sub, ends, begins), counts))
    spread = (took[0] / 1e9, took[len(took) // 2] / 1e9, took[-1] / 1e9)
    end = max(ends)
    return FRAME.pack(STEP, 0, sum(counts), index, end - net, end, *spread)


def _swept(group: Sequence[Entry]) -> tuple[dict[int, int], int]:
    """Time by account, and what steps keep, where spans and steps lie across each other."""
    owners, accounts, steps = [], [], []
    for e in group:
        if e[4] & 0xFF == SPAN:
            owners.append((e[1], e[2], e[1], e[2]))
            accounts.append(e[4] >> ACCOUNT_SHIFT & 0xFFFF)
            continue
        steps.append((e[1], e[2], e[1], e[2]))
        if e[0] < e[1]:
            owners.append((e[0], e[1], e[0], e[1]))
            accounts.append(DATA_WAIT)
    pieces = list(latest_wins(owners))
    times: dict[int, int] = {}
    for a, b, which in pieces:
        times[accounts[which]] = times.get(accounts[which], 0) + b - a
    net, at = 0, 0
    for c, d, _ in latest_wins(steps):
        net += d - c
        while at < len(pieces) and pieces[at][1] <= c:
            at += 1
        k = at
        while k < len(pieces) and pieces[k][0] < d:
            net -= min(pieces[k][1], d) - max(pieces[k][0], c)
            k += 1
    return times, net


def _background(group: Sequence[Entry]) -> bytes:
    """Background spans take no time: long ones as they are, the short ones as one an account."""
    joined: dict[int, list[Entry]] = {}
    frames = b""
    for e in group:
        if e[2] - e[1] >= LONG_NS:
            frames += _frames(e)
        else:
            joined.setdefault(e[4] >> ACCOUNT_SHIFT & 0xFFFF, []).append(e)
    return frames + b"".join(
        span_frame(BACKGROUND, account, min(e[1] for e in es), max(e[2] for e in es), len(es))
        for account, es in joined.items()
    )


def span_frame(kind: int, account: int, t0: int, t1: int, count: int = 1) -> bytes:
    """The frame of a span, or of `count` of them."""
    return FRAME.pack(kind, account, count, 0, t0, t1, 0, 0, 0)


def _frames(entry: Entry) -> bytes:
    wait, begin, end, index, what, _ = entry
    kind, account, count = what & 0xFF, what >> ACCOUNT_SHIFT & 0xFFFF, what >> COUNT_SHIFT
    took = (end - begin) / count / 1e9
    frame = FRAME.pack(kind, account, count, index, begin, end, took, took, took)
    if kind == STEP and wait < begin:
        return span_frame(SPAN, DATA_WAIT, wait, begin) + frame
    return frame
