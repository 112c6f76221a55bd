"""The recorder: what a trainer calls. A call costs a store to shared memory.

Nothing here raises, blocks, synchronises a device or grows without bound. A recorder that cannot
write says so once and turns into a `Silent` one.
"""

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from torchett.model.accounts import INDEX, closest, is_recordable
from torchett.record.clock import now_ns
from torchett.record.flight.format import (
    BACKGROUND,
    CHECKPOINT,
    COUNT_SHIFT,
    SPAN,
    STEP,
    meta,
)
from torchett.record.script_calls import ScriptCalls

if TYPE_CHECKING:
    from torchett.record.flight.writer import FlightWriter

T = TypeVar("T")
StepTimer: TypeAlias = "_StepTimer | _Nothing"
log = logging.getLogger("torchett")

_ONE_STEP = meta(STEP)
_MOST_ACCOUNTS = 1000
_bad_index_said = False
_RECENT = 64  # steps that threads may finish in any order
_REPEATED = (
    "step {} was recorded twice in one attempt, so a restart counts too many steps as lost:"
    " number steps through all epochs, or leave `start` out of ett.steps(…)"
)


class Recorder:
    """One rank's recorder."""

    def __init__(self, writer: "FlightWriter", first_index: Callable[[], int] = lambda: 0) -> None:
        """`first_index` returns the first step's number if the script gives none."""
        self._writer, self._first_index = writer, first_index
        self._accounts = {name: INDEX[name] for name in INDEX if is_recordable(name)}
        self._first_batch_seen = False
        self._note_room = 2 << 20
        global _bad_index_said
        _bad_index_said = False
        self.script_calls = ScriptCalls()
        self.past_step = _past_step(writer)
        self._top = -1  # the highest step that the script recorded
        self._recent: deque[object] = deque(maxlen=_RECENT)  # the last steps that it recorded
        self._repeats = False

    def step(self, index: int, count: int = 1) -> "_StepTimer":
        """Time the body of a `with` as step `index`, or as `count` steps from there on."""
        return _StepTimer(self, index, count)

    def span(self, account: str, background: bool = False) -> "_SpanTimer":
        """Time the body of a `with` under an account."""
        self.script_calls.accounts.add(str(account))
        calls = None if background else self.script_calls
        return _SpanTimer(self._writer, self._number(account), background, calls)

    def open_span(self, account: str) -> Callable[[], None]:
        """Begin a span on behalf of the script; call the returned function to end it."""
        timer = _SpanTimer(self._writer, self._number(account), False, None)
        timer.__enter__()
        return timer.__exit__

    def _number(self, account: str) -> int:
        try:
            return self._accounts[account]
        except (KeyError, TypeError):
            return self._own_account(account)

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

    @property
    def saved_index(self) -> int:
        """The last step that a checkpoint made now holds: the one whose body is running, if any."""
        writer = self._writer
        inside = writer.opened or writer.turn[1] > writer.last_step_ns()
        return self._top + 1 if inside else self._top

    def steps(self, batches: Iterable[T], start: int | None) -> Iterator[T]:
        """The batches; each iteration of the loop is a step, and waiting for the next is data_wait.

        Without `start` numbers go on where the loop before ended.
        """
        writer = self._writer
        turn, put = writer.turn, writer.put
        own = self._top + 1 or self._first_index()
        index = own if start is None else max(_as_index(start), 0)
        self.script_calls.steps = self.script_calls.loops = True
        self.script_calls.accounts |= {"data_wait", "get_first_batch_data"}
        if index <= self._top:
            self._repeated(index)
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
            with _SpanTimer(writer, self._number("get_first_batch_data"), False, None):
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
                    self._top = index
                raise
            end = now_ns()
            put(waited, begin, end, index, _ONE_STEP)
            self._top = index
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

    def _finished(self, index: int, count: int) -> None:
        """A step of `ett.step` is over."""
        if index > self._top:
            self._top = index + count - 1
        elif index <= self._top - _RECENT or index in self._recent:
            self._repeated(index)
        self._recent.append(index)

    def _repeated(self, index: int) -> None:
        if not self._repeats:
            self._repeats = True
            log.warning("torchett: " + _REPEATED.format(index))
            self.note("hint", {"says": _REPEATED.format(index)})

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
        """Close the record: the process exits normally."""
        self._writer.close(fact)

    def abandon(self) -> None:
        """In a forked child: leave the record to the parent."""
        self._writer.abandon()

    def _own_account(self, account: object) -> int:
        """The number of a user's own account; an unknown name becomes x-NAME."""
        name = str(account)
        if not is_recordable(name):
            own = "x-" + ("".join(c if c.isascii() and c.isalnum() else "_" for c in name) or "_")
            if own not in self._accounts:
                meant = f": did you mean {found!r}?" if (found := closest(name)) else "."
                text = "torchett: no account %r%s Its time is recorded as %s"
                log.warning(text, account, meant, own)
            name = own
        if name not in self._accounts and len(self._accounts) > _MOST_ACCOUNTS:
            name = "x-too_many_accounts"  # names made at run time would grow without bound
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
    global _bad_index_said
    if not _bad_index_said:
        _bad_index_said = True
        log.warning("torchett: %r is not a step number; such steps are not recorded", index)
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
    """`with recorder.step(i)`; steps may nest, and several threads may have one each."""

    __slots__ = ("_begin", "_count", "_index", "_recorder")

    def __init__(self, recorder: Recorder, index: int, count: int) -> None:
        self._recorder, self._index, self._count = recorder, index, count

    def __enter__(self) -> None:
        recorder = self._recorder
        recorder.script_calls.steps = True
        writer = recorder._writer
        begin = self._begin = now_ns()
        writer.opened[id(self)] = writer.turn[1] = begin

    def over(self, count: int) -> None:
        """End the step, which stands for `count` steps."""
        self._count = count
        self.__exit__(None, None, None)

    def void(self) -> None:
        """Discard the step that was begun."""
        self._recorder._writer.opened.pop(id(self), None)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        end = now_ns()
        recorder = self._recorder
        writer = recorder._writer
        writer.opened.pop(id(self), None)
        if kind is not None:
            return  # a step that raised did not finish
        index, count, begin = self._index, self._count, self._begin
        if index.__class__ is not int or not 0 <= index < 1 << 62:
            index = _as_index(index)
            if index < 0:
                return
        if count == 1:
            writer.put(begin, begin, end, index, _ONE_STEP)
        else:
            count = count if isinstance(count, int) and 0 < count < 1 << 31 else 1
            writer.put(begin, begin, end, index, STEP | count << COUNT_SHIFT)
        recorder._finished(index, count)


class _SpanTimer:
    """`with recorder.span(account)`; spans may nest and may come from any thread."""

    __slots__ = ("_account", "_background", "_begin", "_script_calls", "_slot", "_writer")

    def __init__(
        self, writer: "FlightWriter", account: int, background: bool, calls: ScriptCalls | None
    ) -> None:
        self._writer, self._account, self._background = writer, account, background
        self._script_calls = calls  # None: a background span

    def __enter__(self) -> None:
        self._begin = now_ns()
        self._slot = self._writer.open_span(self._account, self._begin, self._background)
        if self._script_calls is not None:
            self._script_calls.enter(self._begin)

    def __exit__(self, *_: object) -> None:
        end = now_ns()
        kind = BACKGROUND if self._background else SPAN
        self._writer.put(self._begin, self._begin, end, 0, meta(kind, self._account))
        self._writer.close_span(self._slot)
        if self._script_calls is not None:
            self._script_calls.leave(end)


class Silent:
    """A recorder that records nothing: ETT_DISABLE=1, a data-loader worker, a disk that is full."""

    script_calls = ScriptCalls()
    saved_index = -1

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

    def steps(self, batches: Iterable[T], start: int | None) -> Iterator[T]:
        return iter(batches)

    def last_step(self, index: int) -> None:
        pass

    def checkpoint_durable(self, step: int) -> None:
        pass

    def close(self, fact: dict[str, Any]) -> None:
        pass


class _Nothing:
    __slots__ = ()

    def over(self, count: int) -> None:
        pass

    def void(self) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


_NOTHING = _Nothing()
