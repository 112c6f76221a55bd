"""Staging: the state is copied into the arena while training goes on.

    GPU   compute   │ step k │ event │ forward, backward of k+1 ───── │ wait │ optimizer.step
          side               └─ wait ─ copy copy copy copy ─ event ────┘
    CPU   main      │ step k │ forward, backward of k+1 ────────────── │ join │ optimizer.step
          thread             └─ copy copy copy copy ────────────────────┘

Only what an optimizer owns may be copied late (`fence.py`). The rest (buffers that change in
forward, averages kept beside the optimizer) is copied before `stage` lets the computation go on.
"""

import ctypes
import logging
import threading
from collections.abc import Sequence
from typing import Any

from torchett.checkpoint import fence
from torchett.checkpoint.errors import CheckpointError
from torchett.record.api import past_span
from torchett.record.clock import now_ns

log = logging.getLogger("torchett")

_SMALL = 16 << 10


class Staged:
    """A copy under way. `wait` is for the background, `fence` for the training loop."""

    def __init__(self) -> None:
        self.blocked_ns = 0
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

    def fence(self) -> None:
        """Hold the next optimizer step back until its weights are copied: on the GPU, on the
        GPU alone."""
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
        self._issued.wait()
        for _, event in self._events:
            event.synchronize()
        self._copies.wait()
        self._check()
        self._kept = self._sources = []
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

    def copied(self) -> None:
        """The thread is done."""
        self._copies.set()

    def _check(self) -> None:
        """Compare versions at the end of the copy or at the fence, whichever comes first."""
        if self._checked:
            return
        self._checked = True
        changed = sum(
            tensor._version != version
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
        self._versions += [tensor._version for tensor in sources]


def stage(tensors: Sequence[Any], slots: Sequence[Any], copier: "Copier") -> Staged:
    """Begin to copy each tensor into its slot."""
    import torch

    staged = Staged()
    late_addresses = fence.guarded()
    now: tuple[list[Any], list[Any]] = ([], [])
    thread: tuple[list[Any], list[Any]] = ([], [])
    device: dict[Any, tuple[list[Any], list[Any], list[Any], list[Any]]] = {}
    for tensor, slot in zip(tensors, slots, strict=True):
        late = tensor.data_ptr() in late_addresses
        if tensor.is_cuda:
            lists = device.setdefault(tensor.device, ([], [], [], []))
            lists[2 if late else 0].append(slot)
            lists[3 if late else 1].append(tensor)
        elif late and tensor.numel() * tensor.element_size() > _SMALL:
            thread[0].append(slot)
            thread[1].append(tensor)
        else:
            now[0].append(slot)
            now[1].append(tensor)
    with torch.no_grad():
        for where, (early_to, early_from, late_to, late_from) in device.items():
            side = copier.stream(where)
            compute = torch.cuda.current_stream(where)
            side.wait_event(compute.record_event())
            if early_to:
                with torch.cuda.stream(side):
                    torch._foreach_copy_(early_to, early_from, non_blocking=True)
                compute.wait_event(side.record_event())
            staged._kept += early_from  # fenced already: it may change as it likes
            staged._late(late_from)
            copier.issue(late_to, late_from, staged, where)
        if now[0]:
            torch._foreach_copy_(now[0], now[1])
    if thread[0]:
        staged._late(thread[1])
        staged._copies.clear()
        copier.copy(thread[0], thread[1], staged)
    fence.before_next_step(staged.fence)
    return staged


class Copier:
    """The side streams and the thread that copies beside the computation."""

    def __init__(self) -> None:
        self._streams: dict[Any, Any] = {}

    def stream(self, device: Any) -> Any:
        import torch

        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def issue(self, slots: list[Any], tensors: list[Any], staged: Staged, device: Any) -> None:
        """Queue copies on the side stream from a thread: a thousand take as long as a step's
        launches, and torch does it without the GIL."""
        import torch

        side = self.stream(device)
        staged.issuing()

        def work() -> None:
            done = torch.cuda.Event(blocking=True)
            try:
                with torch.no_grad(), torch.cuda.stream(side):
                    if slots:
                        torch._foreach_copy_(slots, tensors, non_blocking=True)
            except Exception as error:
                staged.failed(f"staging failed: {error}")
            finally:
                done.record(side)
                staged.issued(device, done)

        threading.Thread(target=work, name="ett-issue", daemon=True).start()

    def copy(self, slots: list[Any], tensors: list[Any], staged: Staged) -> None:
        """Copy on a thread of its own."""

        def work() -> None:
            try:
                for slot, tensor in zip(slots, tensors, strict=True):
                    _copy(slot, tensor)
            except Exception as error:
                staged.failed(f"staging failed: {error}")
            finally:
                staged.copied()

        threading.Thread(target=work, name="ett-stage", daemon=True).start()


def _copy(slot: Any, tensor: Any) -> None:
    """memmove, without the GIL and on this thread alone: torch's copy_ would take all cores."""
    import torch

    if tensor.is_contiguous():
        size = tensor.numel() * tensor.element_size()
        ctypes.memmove(slot.data_ptr(), tensor.data_ptr(), size)
    else:
        with torch.no_grad():
            slot.copy_(tensor)
