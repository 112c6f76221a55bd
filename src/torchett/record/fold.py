"""Entries of the ring folded into frames of the log: a million steps in a few hundred kilobytes.

    entries   w═s───s w═s───s ckpt w═s───s w═s───s …       (w: waiting for data, s: a step)
    frames    ┌ data_wait ×2 ┐ gap ┌ steps 7–8 ┐ ckpt …

A folded block keeps its window and the exact time of every account in it; inside the window the
pieces are laid out anew: spans first, then what was neither, then the steps. Blocks are cut where
a resume may fall (checkpoints), where a long span is worth seeing, where indices jump, and where
a span begins that is still open. The first step of a rank stays as it was.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from operator import le, sub

from torchett.model.accounts import INDEX
from torchett.model.overlap import latest_wins
from torchett.record.layout import (
    ACCOUNT_SHIFT,
    BACKGROUND,
    CHECKPOINT,
    COUNT_SHIFT,
    ENTRY,
    FRAME,
    SPAN,
    STEP,
    meta,
)

Entry = tuple[int, int, int, int, int, int]  # wait began, begin, end, index, meta, seq

LONG_NS = 100_000_000  # a span this long is kept by itself
DATA_WAIT = INDEX["data_wait"]
ONE_STEP = meta(STEP)
_CUTS = frozenset(INDEX[name] for name in ("checkpoint_blocked", "final_checkpoint", "evaluation"))


def plain(entries: Iterable[Entry]) -> bytes:
    """Frames for the entries one by one, nothing folded."""
    return b"".join(_frames(entry) for entry in entries)


def fold(entries: Sequence[Entry], open_since: Sequence[int] = (), first: bool = False) -> bytes:
    """Frames for the entries, short ones folded together.

    `open_since`: begins of spans not over yet. `first`: keep the first step by itself.
    """
    return b"".join(
        _block(part) if len(part) > 2 else plain(part)
        for group in _groups(entries, open_since, first)
        for part in _up_to_last_step(group)
    )


def fold_uniform(raw: bytes, begin: int) -> bytes | None:
    """Frames for raw entries from `begin` on that are nothing but steps in turn; else None.

    The usual case, done by column: some 50 µs for half a ring.
    """
    size = len(raw) // ENTRY.size
    flat = struct.unpack(f"<{6 * size}q", raw)
    waits, begins, ends, indices, metas, seqs = (flat[k::6] for k in range(6))
    if (
        size == 0
        or metas.count(ONE_STEP) != size
        or seqs != tuple(range(begin + 1, begin + 1 + size))
        or indices != tuple(range(indices[0], indices[0] + size))
        or not all(map(le, ends, waits[1:]))
    ):
        return None
    waited = sum(begins) - sum(waits)
    frames = b""
    if waited:
        frames = span_frame(SPAN, DATA_WAIT, waits[0], waits[0] + waited, size)
    return frames + _run(begins, ends, sum(ends) - sum(begins), indices[0], size)


def _run(begins: Sequence[int], ends: Sequence[int], net: int, index: int, count: int) -> bytes:
    """The frame of a run of steps: their net time, laid so that it ends where the last one does."""
    took = sorted(map(sub, ends, begins))
    each = count / len(took) * 1e9
    spread = (took[0] / each, took[len(took) // 2] / each, took[-1] / each)
    end = max(ends)
    return FRAME.pack(STEP, 0, count, index, end - net, end, *spread)


def _groups(
    entries: Sequence[Entry], open_since: Sequence[int], first: bool
) -> Iterator[Sequence[Entry]]:
    """Runs of entries that may be folded into one block each; hard ones stand alone."""
    resumes = {entry[3] for entry in entries if entry[4] & 0xFF == CHECKPOINT}
    hard = [e for e in entries if e[4] & 0xFF == SPAN and _is_hard(e)]
    begin = 0
    expected: int | None = None  # the index the next step must have
    for i, entry in enumerate(entries):
        kind = entry[4] & 0xFF
        cut = any(entries[begin][0] < t <= entry[0] for t in open_since)
        if kind == STEP:
            cut = cut or (expected is not None and entry[3] != expected)
            alone = first or any(h[1] < entry[2] and entry[0] < h[2] for h in hard)
            alone = alone or any(entry[0] < t < entry[2] for t in open_since)
            first = False
            expected = entry[3] + (entry[4] >> COUNT_SHIFT)
        else:
            alone = kind == CHECKPOINT or _is_hard(entry)
        if (alone or cut) and begin < i:
            yield entries[begin:i]
            begin = i
        if alone:
            yield entries[i : i + 1]
            begin, expected = i + 1, None
        elif kind == STEP and expected is not None and expected - 1 in resumes:
            yield entries[begin : i + 1]
            begin, expected = i + 1, None
    if begin < len(entries):
        yield entries[begin:]


def _up_to_last_step(group: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """The group cut after its last step: a block ends where its last step ends."""
    last = max((i for i, e in enumerate(group) if e[4] & 0xFF == STEP), default=-1) + 1
    if last:
        yield group[:last]
    if last < len(group):
        yield group[last:]


def _is_hard(entry: Entry) -> bool:
    account = entry[4] >> ACCOUNT_SHIFT & 0xFFFF
    return entry[2] - entry[1] >= LONG_NS or account in _CUTS


def _block(group: Sequence[Entry]) -> bytes:
    """One block: the group's window, with each account's exact time in it."""
    steps = [e for e in group if e[4] & 0xFF == STEP]
    spans = [e for e in group if e[4] & 0xFF == SPAN]
    frames = _background([e for e in group if e[4] & 0xFF == BACKGROUND])
    if not steps and not spans:
        return frames
    waits, begins, ends = ([e[k] for e in steps] for k in range(3))
    lo = min([*waits, *(e[1] for e in spans)])
    if spans or not _in_turn(waits, ends):
        times, net = _swept(steps, spans)
    else:
        times = {DATA_WAIT: sum(begins) - sum(waits)}
        net = sum(ends) - sum(begins)
    counts = {DATA_WAIT: len(steps)}
    for entry in spans:
        account = entry[4] >> ACCOUNT_SHIFT & 0xFFFF
        counts[account] = counts.get(account, 0) + 1
    at = lo
    for account, ns in times.items():
        if ns:
            frames += span_frame(SPAN, account, at, at + ns, counts[account])
            at += ns
    if steps:
        count = sum(e[4] >> COUNT_SHIFT for e in steps)
        frames += _run(begins, ends, net, steps[0][3], count)
    return frames


def _in_turn(waits: Sequence[int], ends: Sequence[int]) -> bool:
    """Whether each step began after the one before had ended."""
    return all(map(le, ends, waits[1:]))


def _swept(steps: Sequence[Entry], spans: Sequence[Entry]) -> tuple[dict[int, int], int]:
    """Time by account, and what steps keep, where spans and steps lie across each other."""
    owners = [(e[1], e[2], e[1], e[2]) for e in spans]
    accounts = [e[4] >> ACCOUNT_SHIFT & 0xFFFF for e in spans]
    waits = [e for e in steps if e[0] < e[1]]
    owners += [(e[0], e[1], e[0], e[1]) for e in waits]
    accounts += [DATA_WAIT] * len(waits)
    pieces = list(latest_wins(owners))
    times: dict[int, int] = {}
    for a, b, which in pieces:
        times[accounts[which]] = times.get(accounts[which], 0) + b - a
    net, at = 0, 0
    for c, d, _ in latest_wins([(e[1], e[2], e[1], e[2]) for e in steps]):
        net += d - c
        while at < len(pieces) and pieces[at][1] <= c:
            at += 1
        k = at
        while k < len(pieces) and pieces[k][0] < d:
            net -= min(pieces[k][1], d) - max(pieces[k][0], c)
            k += 1
    return times, net


def _background(group: Sequence[Entry]) -> bytes:
    """Background spans take no time: the short ones of a block are kept as one each."""
    joined: dict[int, list[Entry]] = {}
    for entry in group:
        joined.setdefault(entry[4] >> ACCOUNT_SHIFT & 0xFFFF, []).append(entry)
    return b"".join(
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
