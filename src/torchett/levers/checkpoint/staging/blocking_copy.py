"""Saving without room for a copy: the weights stand still until they are written.

The fall-back for `staging_memory=`. Forward and backward go on; the next optimizer step waits
until the checkpoint is on storage. One tensor at a time passes through memory.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torchett.levers.checkpoint.staging import fence
from torchett.record.api import past_span
from torchett.record.clock import now_ns

log = logging.getLogger("torchett")

_told = False


class Held:
    """A state that is read where it is. What may change before the next step is copied first."""

    cpu_s = 0.0
    sums: Mapping[Any, int] = {}

    def __init__(self, tensors: Sequence[Any], size: int, bound: int) -> None:
        import torch

        self.blocked_ns = 0
        self._size, self._bound = size, bound
        self._read = threading.Event()
        self._ready: list[Any] = []
        guarded = fence.guarded()
        self.tensors: list[Callable[[], Any]] = []
        with torch.no_grad():
            for tensor in tensors:
                if tensor.data_ptr() in guarded:
                    self.tensors.append(_reader(tensor))
                else:
                    copied = tensor.detach().to("cpu", copy=True)
                    self.tensors.append(partial(_same, copied))
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            event = torch.cuda.Event(blocking=True)
            event.record(torch.cuda.current_stream(device))
            self._ready.append(event)
        fence.before_next_step(self.fence)

    def wait(self) -> None:
        for event in self._ready:
            event.synchronize()

    def release(self) -> None:
        self._read.set()

    def waited_s(self) -> float:
        return self.blocked_ns / 1e9

    def fence(self) -> None:
        """Wait for the upload, and say once what that costs."""
        global _told
        if self._read.is_set():
            return
        began = now_ns()
        self._read.wait()
        ended = now_ns()
        self.blocked_ns += ended - began
        past_span("checkpoint_blocked", began, ended)
        if not _told:
            _told = True
            log.warning(
                "torchett: the state is %.2f GiB and staging_memory %.2f GiB, so training waited "
                "%.2f s for this checkpoint; it would not wait with staging_memory=%d",
                self._size / 2**30,
                self._bound / 2**30,
                (ended - began) / 1e9,
                self._size,
            )


def _same(tensor: Any) -> Any:
    return tensor


def _reader(tensor: Any) -> Callable[[], Any]:
    import torch

    def read() -> Any:
        with torch.no_grad():
            if tensor.is_cuda:
                side = torch.cuda.Stream(tensor.device)
                with torch.cuda.stream(side):
                    copied = tensor.detach().to("cpu", non_blocking=True)
                side.synchronize()
                return copied
            local = tensor.detach()
            whole = local.untyped_storage().nbytes() == local.numel() * local.element_size()
            return local if whole else local.clone()

    return read
