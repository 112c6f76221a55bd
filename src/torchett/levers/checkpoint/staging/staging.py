"""Staging: the state is copied into the arena while training goes on.

    GPU   compute   │ step k │ event │ forward, backward of k+1 ───── │ wait │ optimizer.step
          side               └─ wait ─ copy copy copy copy ─ event ────┘
    CPU   main      │ step k │ forward, backward of k+1 ────────────── │ join │ optimizer.step
          thread             └─ copy copy copy copy ────────────────────┘

Only what an optimizer owns may be copied late (`fence.py`). The rest (buffers that change in
forward, averages kept beside the optimizer) is copied before `stage` lets the computation go on.

A GPU's queue holds about a thousand copies that wait for the step before to end; a thread that
queues one more waits in the driver, and the main thread's launches with it. So small tensors, three
in four of a transformer's, are gathered on the GPU and leave it as one.
"""

import ctypes
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchett.levers.checkpoint.errors import CheckpointError
from torchett.levers.checkpoint.staging import fence
from torchett.levers.checkpoint.staging.live_sum import sum_of
from torchett.levers.checkpoint.torch_names import (
    apart_again,
    copy_all,
    one_after_the_other,
    version_of,
)
from torchett.record.api import past_span
from torchett.record.clock import now_ns

log = logging.getLogger("torchett")

_SMALL = 64 << 10


class Staged:
    """A copy under way. `wait` is for the background, `fence` for the training loop."""

    def __init__(self) -> None:
        self.blocked_ns = 0
        self.cpu_s = 0.0  # of the thread that copies
        self.sums: dict[Any, int] = {}
        self._sums_on_gpu: list[tuple[list[Any], Any]] = []
        self._kept: list[Any] = []  # alive until they are copied
        self._sources: list[Any] = []  # of these, what must not change before
        self._versions: list[int] = []
        self._checked = False
        self._error: str | None = None
        self._copies = threading.Event()  # on the CPU
        self._copies.set()
        self._issued = threading.Event()  # to the GPU
        self._issued.set()
        self._to_issue = 0
        self._events: list[tuple[Any, Any]] = []  # (device, event)
        self._marks: list[tuple[Any, Any]] = []  # before and after a wait on the GPU
        self._gathered: list[tuple[list[Any], Any]] = []  # slots, and what belongs into them
        self._waiting = threading.Lock()
        self._whole = False

    def fence(self) -> None:
        """Hold the next optimizer step back until its weights are copied.

        The GPU's stream waits, where the weights are on a GPU; else the thread does.
        """
        self._check()
        self._until(self._issued)
        if self._events:
            import torch

            for device, event in self._events:
                compute = torch.cuda.current_stream(device)
                marks = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
                marks[0].record(compute)
                compute.wait_event(event)
                marks[1].record(compute)
                self._marks.append(marks)
        self._until(self._copies)

    def _until(self, done: threading.Event) -> None:
        if not done.is_set():
            began = now_ns()
            done.wait()
            ended = now_ns()
            self.blocked_ns += ended - began
            past_span("checkpoint_blocked", began, ended)

    def wait(self) -> None:
        """Return when all bytes are in the arena; CheckpointError if they may be mixed."""
        with self._waiting:  # an upload and the tier in memory both wait
            if not self._whole:
                self._issued.wait()
                for _, event in self._events:
                    event.synchronize()
                for slots, tensors in self._gathered:
                    _copy(slots, tensors)
                for keys, sums in self._sums_on_gpu:
                    self.sums.update(zip(keys, sums.tolist(), strict=True))
                self._copies.wait()
                self._check()
                self._kept = self._sources = self._gathered = self._sums_on_gpu = []
                self._whole = True
        if self._error is not None:
            raise CheckpointError(self._error)

    def waited_s(self) -> float:
        """Seconds the loop or the GPU waited at the fence, as far as they are over."""
        on_gpu = [a.elapsed_time(b) / 1e3 for a, b in self._marks if b.query()]
        return self.blocked_ns / 1e9 + max(on_gpu, default=0.0)

    def release(self) -> None:
        """Nothing to give back: the arena is kept."""

    def failed(self, said: str) -> None:
        self._error = said

    def issuing(self) -> None:
        """A thread is about to queue copies on a GPU."""
        self._to_issue += 1
        self._issued.clear()

    def issued(self, device: Any, done: Any) -> None:
        """They are queued; `done` is the event after the last of them."""
        self._events.append((device, done))
        self._to_issue -= 1
        if self._to_issue == 0:
            self._issued.set()

    def gathered(self, slots: list[Any], tensors: Any) -> None:
        """Small tensors that go through memory of their own, on their way there."""
        self._gathered.append((slots, tensors))

    def summed(self, to_sum: Mapping[Any, Any]) -> None:
        """Take the checksums of tensors as they are now, in the order of the stream."""
        import torch

        if not to_sum:
            return
        sums = [sum_of(tensor) for tensor in to_sum.values()]
        if isinstance(sums[0], int):
            self.sums.update(zip(to_sum, sums, strict=True))
        else:
            on_cpu = torch.stack(sums).to("cpu", non_blocking=True)
            self._sums_on_gpu.append(([*to_sum], on_cpu))

    def copied(self) -> None:
        """The thread is done."""
        self._copies.set()

    def _check(self) -> None:
        """Compare versions at the end of the copy or at the fence, whichever comes first."""
        if self._checked:
            return
        self._checked = True
        changed = sum(
            version_of(tensor) != version
            for tensor, version in zip(self._sources, self._versions, strict=True)
        )
        if changed:
            self._error = (
                f"{changed} tensors of an optimizer changed outside of its step while they were "
                "copied: call ckpt.fence() before changing weights by other means"
            )

    def _late(self, sources: list[Any]) -> None:
        self._kept += sources
        self._sources += sources
        self._versions += [version_of(tensor) for tensor in sources]


@dataclass(slots=True)
class _Group:
    """Tensors of one device that are staged at the same time, and those to be summed only."""

    to: list[Any] = field(default_factory=list)
    of: list[Any] = field(default_factory=list)
    sums: dict[Any, Any] = field(default_factory=dict)

    @property
    def sources(self) -> list[Any]:
        return [*self.of, *self.sums.values()]


def stage(
    tensors: Sequence[Any],
    slots: Sequence[Any],
    copier: "Copier",
    to_sum: Mapping[Any, Any] | None = None,
) -> Staged:
    """Begin to copy each tensor into its slot, and to take the checksums of those `to_sum`."""
    import torch

    staged, here = Staged(), torch.device("cpu")
    groups = _grouped(tensors, slots, to_sum or {})
    now, thread = groups.pop((here, False), None), groups.pop((here, True), None)
    with torch.no_grad():
        for device in {device for device, _ in groups}:
            side = copier.stream(device)
            compute = torch.cuda.current_stream(device)
            side.wait_event(compute.record_event())
            first = groups[device, False]
            if first.sources:
                with torch.cuda.stream(side):
                    if first.to:
                        copy_all(first.to, first.of, non_blocking=True)
                    staged.summed(first.sums)
                compute.wait_event(side.record_event())
                staged._kept += first.sources  # fenced already: they may change as they like
            staged._late(groups[device, True].sources)
            copier.issue(groups[device, True], staged, device)
        if now is not None:
            if now.to:
                copy_all(now.to, now.of)
            staged.summed(now.sums)
    if thread is not None:
        staged._late(thread.sources)
        staged._copies.clear()
        copier.copy(thread, staged)
    fence.before_next_step(staged.fence)
    return staged


def _grouped(
    tensors: Sequence[Any], slots: Sequence[Any], to_sum: Mapping[Any, Any]
) -> dict[tuple[Any, bool], _Group]:
    """By device, and by whether an optimizer owns them: these may be read late."""
    import torch

    guarded, here = fence.guarded(), torch.device("cpu")
    groups: dict[tuple[Any, bool], _Group] = defaultdict(_Group)

    def group_of(tensor: Any, address: int) -> _Group:
        return groups[tensor.device if tensor.is_cuda else here, address in guarded]

    for tensor, slot, address in zip(tensors, slots, fence.addresses(tensors), strict=True):
        group = group_of(tensor, address)
        group.to.append(slot)
        group.of.append(tensor)
    summed = [*to_sum.values()]
    for key, tensor, address in zip(to_sum, summed, fence.addresses(summed), strict=True):
        group_of(tensor, address).sums[key] = tensor
    return groups


class Copier:
    """The side streams and the thread that copies beside the computation."""

    def __init__(self) -> None:
        self._streams: dict[Any, Any] = {}

    def stream(self, device: Any) -> Any:
        import torch

        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def issue(self, group: _Group, staged: Staged, device: Any) -> None:
        """Queue copies on the side stream from a thread: torch does it without the GIL."""
        import torch

        side = self.stream(device)
        staged.issuing()

        def work() -> None:
            done = torch.cuda.Event(blocking=True)
            try:
                with torch.no_grad(), torch.cuda.stream(side):
                    large = _gather(group.to, group.of, staged)
                    if large[0]:
                        copy_all(*large, non_blocking=True)
                    staged.summed(group.sums)
            except Exception as error:
                staged.failed(f"staging failed: {error}")
            finally:
                done.record(side)
                staged.issued(device, done)

        threading.Thread(target=work, name="ett-issue", daemon=True).start()

    def copy(self, group: _Group, staged: Staged) -> None:
        """Copy on a thread of its own."""

        def work() -> None:
            try:
                _copy(group.to, group.of)
                staged.summed(group.sums)
            except Exception as error:
                staged.failed(f"staging failed: {error}")
            finally:
                staged.cpu_s = time.thread_time()
                staged.copied()

        threading.Thread(target=work, name="ett-stage", daemon=True).start()


def _gather(slots: list[Any], tensors: list[Any], staged: Staged) -> tuple[list[Any], list[Any]]:
    """Begin to copy the small ones, all of a type at once; the rest comes back."""
    groups: dict[Any, tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for slot, tensor in zip(slots, tensors, strict=True):
        to, of = groups[tensor.dtype if 0 < tensor.nbytes <= _SMALL else None]
        to.append(slot)
        of.append(tensor)
    large = groups.pop(None, ([], []))
    for to, of in groups.values():
        pinned = one_after_the_other(of).to("cpu", non_blocking=True)
        staged.gathered(to, apart_again(pinned, of))
    return large


def _copy(slots: Sequence[Any], tensors: Sequence[Any]) -> None:
    """Copy without the GIL and on this thread alone.

    torch's copy_ takes all cores for a large tensor, so those are moved by memmove; many small ones
    go in one call of torch.
    """
    import torch

    small: tuple[list[Any], list[Any]] = ([], [])
    for slot, tensor in zip(slots, tensors, strict=True):
        size = tensor.nbytes
        if size > _SMALL and tensor.is_contiguous():
            ctypes.memmove(slot.data_ptr(), tensor.data_ptr(), size)
        else:
            small[0].append(slot)
            small[1].append(tensor)
    if small[0]:
        with torch.no_grad():
            copy_all(*small)
