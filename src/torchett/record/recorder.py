"""The recorder: what a trainer calls, at the price of a store to shared memory.

Nothing here raises, blocks, synchronises a device or grows without bound. A recorder that cannot
write says so once and turns into a `Silent` one.
"""

import logging
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from torchett.model.accounts import INDEX, is_recordable
from torchett.record.clock import now_ns
from torchett.record.layout import (
    BACKGROUND,
    CHECKPOINT,
    COUNT_SHIFT,
    ENTRY,
    HALF,
    RING,
    SLOTS,
    SPAN,
    STEP,
    meta,
)

if TYPE_CHECKING:
    from torchett.record.flight import FlightWriter

T = TypeVar("T")
log = logging.getLogger("torchett")

_store = ENTRY.pack_into
_SIZE = ENTRY.size
_WRAP = SLOTS - 1
_HALF_MASK = HALF - 1
_ONE_STEP = meta(STEP)
_NOT_AN_INT = (struct.error, TypeError, OverflowError)


class Recorder:
    """One rank's recorder."""

    def __init__(self, writer: "FlightWriter") -> None:
        self._writer = writer
        self._accounts = dict(INDEX)
        self._first_batch_seen = False
        self._warned: set[str] = set()
        self.step = _StepTimer(writer)

    def span(self, account: str, background: bool = False) -> "_SpanTimer":
        """Time the body of a `with` under an account."""
        return _SpanTimer(self._writer, self._number(account), background)

    def past_span(self, account: str, t0_ns: int, t1_ns: int) -> None:
        """Record a span that is already over."""
        if t0_ns < t1_ns:
            _put(self._writer, t0_ns, t0_ns, t1_ns, 0, meta(SPAN, self._number(account)))

    def steps(self, batches: Iterable[T], start: int) -> Iterator[T]:
        """The batches; each turn of the loop is a step, and waiting for the next is data_wait."""
        writer = self._writer
        ring, next_seq, drain = writer.ring, writer.next_seq, writer.drain
        index = start
        source = iter(batches)
        waited = now_ns()
        previous_ns = 0
        if not self._first_batch_seen:
            self._first_batch_seen = True
            with self.span("get_first_batch_data"):
                try:
                    batch = next(source)
                except StopIteration:
                    return
            waited = begin = now_ns()
        else:
            try:
                batch = next(source)
            except StopIteration:
                return
            begin = now_ns()
        while True:
            try:
                yield batch
            except GeneratorExit:
                # The loop was left by `break`, before or after the step's work: counted as a
                # step if it took at least half as long as the one before.
                end = now_ns()
                if sys.exc_info()[1].__context__ is None and 0 < previous_ns <= 2 * (end - begin):  # type: ignore[union-attr]
                    _put(writer, waited, begin, end, index, _ONE_STEP)
                raise
            end = now_ns()
            seq = next_seq()
            if not seq & _HALF_MASK and seq >= SLOTS:
                drain(seq)
            at = RING + (seq & _WRAP) * _SIZE
            _store(ring, at, waited, begin, end, index, _ONE_STEP, seq + 1)
            previous_ns = end - begin
            index += 1
            waited = end
            try:
                batch = next(source)
            except StopIteration:
                return
            begin = now_ns()

    def checkpoint_durable(self, step: int) -> None:
        """The checkpoint that holds the effect of `step` is safe."""
        now = now_ns()
        try:
            _put(self._writer, now, now, now, int(step), meta(CHECKPOINT))
        except Exception:
            log.warning("torchett: a checkpoint was not recorded: %r is not a step number", step)

    def close(self, fact: dict[str, Any]) -> None:
        """The process ends in good order."""
        self._writer.close(self._writer.next_seq(), fact)

    def _number(self, account: str) -> int:
        number = self._accounts.get(account)
        if number is not None and (account in _KNOWN or is_recordable(account)):
            return number
        if not is_recordable(account):
            own = "x-" + "".join(c if c.isascii() and c.isalnum() else "_" for c in str(account))
            if account not in self._warned and len(self._warned) < 100:
                self._warned.add(account)
                log.warning("torchett: no account '%s'; its time is recorded as %s", account, own)
            account = own
        if account not in self._accounts:
            if len(self._accounts) > 1000:  # names made up at run time would grow for ever
                account = "x-too_many_accounts"
            self._accounts.setdefault(account, self._writer.name_account(account))
        return self._accounts[account]


_KNOWN = frozenset(name for name in INDEX if is_recordable(name))


def _put(writer: "FlightWriter", waited: int, begin: int, end: int, index: int, what: int) -> None:
    seq = writer.next_seq()
    if not seq & _HALF_MASK and seq >= SLOTS:
        writer.drain(seq)
    _store(writer.ring, RING + (seq & _WRAP) * _SIZE, waited, begin, end, index, what, seq + 1)


def _put_odd(writer: "FlightWriter", begin: int, end: int, index: object, what: int) -> None:
    """A step whose index is not an int: a tensor or a numpy number is one all the same."""
    try:
        _put(writer, begin, begin, end, int(index), what)  # type: ignore[call-overload]
    except Exception:
        log.warning("torchett: a step was not recorded: %r is not a step number", index)


class _StepTimer:
    """`with recorder.step(i)`: one object for all steps, so that a step allocates nothing."""

    __slots__ = ("_begin", "_drain", "_index", "_meta", "_next_seq", "_ring", "_writer")

    def __init__(self, writer: "FlightWriter") -> None:
        self._writer = writer
        self._ring, self._next_seq, self._drain = writer.ring, writer.next_seq, writer.drain
        self._index = self._begin = 0
        self._meta = _ONE_STEP

    def __call__(self, index: int, count: int = 1) -> "_StepTimer":
        self._index = index
        self._meta = _ONE_STEP if count == 1 else STEP | count << COUNT_SHIFT
        return self

    def __enter__(self) -> None:
        self._begin = now_ns()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            return  # a step that raised did not finish
        end = now_ns()
        begin = self._begin
        seq = self._next_seq()
        if not seq & _HALF_MASK and seq >= SLOTS:
            self._drain(seq)
        at = RING + (seq & _WRAP) * _SIZE
        try:
            _store(self._ring, at, begin, begin, end, self._index, self._meta, seq + 1)
        except _NOT_AN_INT:
            _put_odd(self._writer, begin, end, self._index, self._meta)


class _SpanTimer:
    """`with recorder.span(account)`; spans may nest and may come from any thread."""

    __slots__ = ("_account", "_background", "_begin", "_slot", "_writer")

    def __init__(self, writer: "FlightWriter", account: int, background: bool) -> None:
        self._writer, self._account, self._background = writer, account, background

    def __enter__(self) -> None:
        self._begin = now_ns()
        self._slot = self._writer.open_span(self._account, self._begin, self._background)

    def __exit__(self, *_: object) -> None:
        end = now_ns()
        kind = BACKGROUND if self._background else SPAN
        _put(self._writer, self._begin, self._begin, end, 0, meta(kind, self._account))
        self._writer.close_span(self._slot)


class Silent:
    """A recorder that records nothing: ETT_DISABLE=1, a data-loader worker, a disk that is full."""

    def span(self, account: str, background: bool = False) -> "_Nothing":
        return _NOTHING

    def step(self, index: int, count: int = 1) -> "_Nothing":
        return _NOTHING

    def past_span(self, account: str, t0_ns: int, t1_ns: int) -> None:
        pass

    def steps(self, batches: Iterable[T], start: int) -> Iterator[T]:
        return iter(batches)

    def checkpoint_durable(self, step: int) -> None:
        pass

    def close(self, fact: dict[str, Any]) -> None:
        pass


class _Nothing:
    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


_NOTHING = _Nothing()
