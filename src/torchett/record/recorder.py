"""The recorder: what a trainer calls, at the price of a store to shared memory.

Nothing here raises, blocks, synchronises a device or grows without bound. A recorder that cannot
write says so once and turns into a `Silent` one.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from torchett.model.accounts import INDEX, is_recordable
from torchett.record.clock import now_ns
from torchett.record.layout import (
    BACKGROUND,
    CHECKPOINT,
    COUNT_SHIFT,
    NOT_AN_INT,
    SPAN,
    STEP,
    meta,
)

if TYPE_CHECKING:
    from torchett.record.flight import FlightWriter

T = TypeVar("T")
log = logging.getLogger("torchett")

_ONE_STEP = meta(STEP)
_MOST_ACCOUNTS = 1000


class Recorder:
    """One rank's recorder."""

    def __init__(self, writer: "FlightWriter") -> None:
        self._writer = writer
        self._accounts = {name: INDEX[name] for name in INDEX if is_recordable(name)}
        self._first_batch_seen = False
        self._note_room = 2 << 20
        self.step = _StepTimer(writer).numbered
        self.past_step = _past_step(writer)

    def span(self, account: str, background: bool = False) -> "_SpanTimer":
        """Time the body of a `with` under an account."""
        try:
            number = self._accounts[account]
        except (KeyError, TypeError):
            number = self._own_account(account)
        return _SpanTimer(self._writer, number, background)

    def open_span(self, account: str) -> Callable[[], None]:
        """Begin a span; call what comes back to end it."""
        timer = Recorder.span(self, account)
        timer.__enter__()
        return timer.__exit__

    def past_span(self, account: str, t0_ns: int, t1_ns: int, background: bool = False) -> None:
        """Record a span that is already over."""
        if t0_ns < t1_ns:
            number = self._accounts.get(account)
            number = self._own_account(account) if number is None else number
            kind = BACKGROUND if background else SPAN
            self._writer.put(t0_ns, t0_ns, t1_ns, 0, meta(kind, number))

    def note(self, kind: str, fact: dict[str, Any]) -> None:
        """Keep a fact with the record; 2 MiB are kept, small ones counted as one KiB."""
        try:
            self._note_room -= 1024 + len(repr(fact))
            if self._note_room > 0:
                self._writer.note({"note": kind, "fact": fact})
        except Exception as error:
            log.debug("torchett: a note was not kept: %s", error)

    def steps(self, batches: Iterable[T], start: int) -> Iterator[T]:
        """The batches; each turn of the loop is a step, and waiting for the next is data_wait."""
        writer = self._writer
        turn, put = writer.turn, writer.put
        index = max(_as_index(start), 0)
        source = iter(batches)
        asked_at = _place(sys._getframe().f_back)
        previous_ns = 0
        turn[0] = waited = now_ns()
        if self._first_batch_seen:
            try:
                batch = next(source)
            except StopIteration:
                return
            begin = now_ns()
        else:
            with self.span("get_first_batch_data"):
                try:
                    batch = next(source)
                except StopIteration:
                    return
            self._first_batch_seen = True
            turn[0] = waited = begin = now_ns()
        while True:
            turn[1] = begin
            try:
                yield batch
            except GeneratorExit:
                # Left by `break` or `return`, before or after the step's work: counted as a step
                # if it took at least half as long as the one before.
                end = now_ns()
                if 0 < previous_ns <= 2 * (end - begin) and _is_left_on_purpose(asked_at):
                    put(waited, begin, end, index, _ONE_STEP)
                raise
            end = now_ns()
            put(waited, begin, end, index, _ONE_STEP)
            previous_ns = end - begin
            index += 1
            turn[0] = waited = end
            try:
                batch = next(source)
            except StopIteration:
                return
            begin = now_ns()

    def last_step(self, index: int) -> None:
        """The process is about to end: if it is inside step `index`, whose work is done, record it.

        It is if that step has begun since the last one ended.
        """
        writer = self._writer
        (waited, begin), ended = writer.turn, writer.last_step_ns()
        index = _as_index(index)
        if begin > ended and index >= 0:
            waited = waited if max(ended, 1) <= waited <= begin else begin
            writer.put(waited, begin, now_ns(), index, _ONE_STEP)

    def checkpoint_durable(self, step: int) -> None:
        """The checkpoint that holds the effect of `step` is safe."""
        now = now_ns()
        index = _as_index(step)
        if index >= 0:
            self._writer.put(now, now, now, index, meta(CHECKPOINT))

    def has_stepped(self) -> bool:
        """Whether a step of this process is over."""
        return self._writer.has_step()

    def close(self, fact: dict[str, Any]) -> None:
        """The process ends in good order."""
        self._writer.close(fact)

    def abandon(self) -> None:
        """In a forked child: leave the record to the parent."""
        self._writer.abandon()

    def _own_account(self, account: object) -> int:
        """The number of a user's own account; a name that is none is made one."""
        name = str(account)
        if not is_recordable(name):
            own = "x-" + ("".join(c if c.isascii() and c.isalnum() else "_" for c in name) or "_")
            if own not in self._accounts:
                log.warning("torchett: no account %r; its time is recorded as %s", account, own)
            name = own
        if name not in self._accounts and len(self._accounts) > _MOST_ACCOUNTS:
            name = "x-too_many_accounts"  # names made up at run time would grow for ever
        if name not in self._accounts:
            self._accounts[name] = self._writer.name_account(name)
        return self._accounts[name]


def _past_step(writer: "FlightWriter") -> Callable[..., None]:
    """What records steps that are over, and with them the wait before; the next has begun."""
    put, turn = writer.put, writer.turn

    def past_step(waited_ns: int, begin_ns: int, end_ns: int, index: int, count: int = 1) -> None:
        put(waited_ns, begin_ns, end_ns, index, STEP | count << COUNT_SHIFT)
        turn[0] = turn[1] = end_ns

    return past_step


def _as_index(index: object) -> int:
    """A step number as an int: a tensor or a numpy number is one all the same; else −1."""
    try:
        number: int = int(index)  # type: ignore[call-overload]
        if 0 <= number < 1 << 62:
            return number
    except Exception:
        pass
    log.warning("torchett: %r is not a step number", index)
    return -1


def _place(frame: FrameType | None) -> tuple[CodeType, int] | None:
    """The instruction that a frame is at; the frame itself, if kept, would keep its loop's."""
    return None if frame is None else (frame.f_code, frame.f_lasti)


def _is_left_on_purpose(asked_at: tuple[CodeType, int] | None) -> bool:
    """Whether the loop around a generator that is being closed was left by break or return.

    Then the loop's frame is at the instruction that lets go of its iterator, or, where the loop
    asks a `zip` or an `islice` that is exhausted, at the one by which it asks for batches. An
    exception lets go of it wherever it was raised, and an interpreter at its end whenever it
    comes to it.
    """
    if sys.is_finalizing():
        return False
    import dis

    frame = sys._getframe(2)
    left = dis.opname[frame.f_code.co_code[frame.f_lasti]] in ("POP_TOP", "POP_ITER")
    return left or _place(frame) == asked_at


class _StepTimer:
    """`with recorder.step(i)`: one object for all steps, so that a step allocates nothing."""

    __slots__ = ("_begin", "_index", "_meta", "_put", "_turn")

    def __init__(self, writer: "FlightWriter") -> None:
        self._put, self._turn = writer.put, writer.turn
        self._index = self._begin = 0
        self._meta = _ONE_STEP

    def numbered(self, index: int, count: int = 1) -> "_StepTimer":
        """The timer, set to time step `index`."""
        self._index = index
        if count == 1:
            self._meta = _ONE_STEP
        else:
            known = isinstance(count, int) and 0 < count < 1 << 31
            self._meta = STEP | (count if known else 1) << COUNT_SHIFT
        return self

    def __enter__(self) -> None:
        self._turn[1] = self._begin = now_ns()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            return  # a step that raised did not finish
        end, begin = now_ns(), self._begin
        try:
            self._put(begin, begin, end, self._index, self._meta)
        except NOT_AN_INT:
            index = _as_index(self._index)
            if index >= 0:
                self._put(begin, begin, end, index, self._meta)


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
        self._writer.put(self._begin, self._begin, end, 0, meta(kind, self._account))
        self._writer.close_span(self._slot)


class Silent:
    """A recorder that records nothing: ETT_DISABLE=1, a data-loader worker, a disk that is full."""

    def span(self, account: str, background: bool = False) -> "_Nothing":
        return _NOTHING

    def step(self, index: int, count: int = 1) -> "_Nothing":
        return _NOTHING

    def past_span(self, account: str, t0_ns: int, t1_ns: int, background: bool = False) -> None:
        pass

    def past_step(
        self, waited_ns: int, begin_ns: int, end_ns: int, index: int, count: int = 1
    ) -> None:
        pass

    def note(self, kind: str, fact: dict[str, Any]) -> None:
        pass

    def has_stepped(self) -> bool:
        return False

    def abandon(self) -> None:
        pass

    def steps(self, batches: Iterable[T], start: int) -> Iterator[T]:
        return iter(batches)

    def last_step(self, index: int) -> None:
        pass

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
