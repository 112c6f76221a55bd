"""The arena: kept memory that the trainer copies into and the upload process reads from.

One anonymous file in memory, mapped by both. On a machine with GPUs it is pinned, so that copies
to it run beside the computation. It is made once (8 GiB take seconds to pin: in the background)
and kept, because making it is what costs.
"""

import logging
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("torchett")

_ALIGN = 4096
_PIECE = 64 << 20


@dataclass(frozen=True, slots=True)
class Slot:
    """Where in the arena a tensor lies."""

    offset: int
    shape: tuple[int, ...]
    dtype: Any

    def view(self, memory: "mmap.mmap") -> Any:
        """A tensor on this slot alone: its storage ends where the slot does."""
        import torch

        count = 1
        for length in self.shape:
            count *= length
        if count == 0:
            return torch.empty(self.shape, dtype=self.dtype)
        flat = torch.frombuffer(memory, dtype=self.dtype, count=count, offset=self.offset)
        return flat.view(self.shape)


def lay_out(tensors: Sequence[Any]) -> tuple[list[Slot], int]:
    """A slot for each tensor, and the bytes of all."""
    slots, end = [], 0
    for tensor in tensors:
        slots.append(Slot(end, tuple(tensor.shape), tensor.dtype))
        size = tensor.numel() * tensor.element_size()
        align = _ALIGN if size >= _ALIGN else 64
        end = -(-(end + size) // align) * align
    return slots, end


class Arena:
    """`size` bytes of shared memory; `make_ready` touches and pins them.

    With `fd` they are those of an attempt before, which are there and keep what is in them.
    """

    def __init__(self, size: int, fd: int | None = None) -> None:
        self._is_touched = fd is not None
        if fd is None:
            size = -(-max(size, 1) // _ALIGN) * _ALIGN
            fd = os.memfd_create("ett-checkpoint")
            os.ftruncate(fd, size)
        self.size, self.fd = size, fd
        self.memory = mmap.mmap(self.fd, self.size)
        self._pinned = 0

    def make_ready(self, pin: bool) -> None:
        """Touch every page, so that no copy has to; then pin them where there is a GPU.

        Pages that are there already are pinned sooner, and while that goes on every call to the
        GPU's driver waits.
        """
        import torch

        whole = torch.frombuffer(self.memory, dtype=torch.uint8)
        for start in range(0, 0 if self._is_touched else self.size, _PIECE):
            whole[start : start + _PIECE].zero_()  # memset in C, without the GIL
        if pin:
            code = torch.cuda.cudart().cudaHostRegister(whole.data_ptr(), self.size, 0)
            if int(code) == 0:
                self._pinned = whole.data_ptr()
            else:
                log.warning(
                    "torchett: %d bytes cannot be pinned (%s): copies block", self.size, code
                )

    @property
    def pinned(self) -> bool:
        return self._pinned != 0

    def close(self) -> None:
        """Give the memory back; tensors on it must be gone."""
        if self._pinned:
            import torch

            torch.cuda.cudart().cudaHostUnregister(self._pinned)
            self._pinned = 0
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        try:
            self.memory.close()
        except BufferError:
            pass  # a tensor still looks at it: it goes with the tensor
