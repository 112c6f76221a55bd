"""What a batch was pinned from is given back while others run Python, not while nobody can.

    torch   pinning thread   copies ▓▓▓ frees ▒▒        9 MB of shared memory: 2 ms that the whole
            training         ███████████      ████████  process waits, for each batch
    here    pinning thread   copies ▓▓▓ frees ▒▒
            training         █████████████████████████

A worker sends a large tensor as a file in shared memory. Its copy in pinned memory made, the thread
that did so lets it go, and the kernel takes thousands of pages apart inside of a call that holds
the interpreter's lock. Here the pages leave this process by a call that does not hold it. A second
mapping keeps the file until the tensor is gone, and then goes the same way: nothing that anybody
else sees in the file changes, and it lives for one batch longer.
"""

import mmap
import threading
import weakref
from functools import cache, wraps
from typing import Any

from torchett.record.boarding import when_imported

_LEAST = 1 << 18  # bytes: less is freed in no time
_of_thread = threading.local()


def board() -> None:
    """Have loaders' pinning threads do so."""
    when_imported("torch.utils.data._utils.pin_memory", _hook)


def _hook(pinning: Any) -> None:
    theirs = pinning.pin_memory

    @wraps(theirs)
    def pin_memory(data: Any, *args: Any, **kwargs: Any) -> Any:
        pinned = theirs(data, *args, **kwargs)  # of a collection: comes here for each part
        if pinned is not data and _is_shared(data):
            let_go(data)
        return pinned

    pinning.pin_memory = pin_memory


def _is_shared(data: Any) -> bool:
    import torch

    return (
        type(data) is torch.Tensor
        and data.device.type == "cpu"
        and data.nbytes >= _LEAST
        and data.is_shared()
    )


def let_go(tensor: Any) -> None:
    """Make freeing this tensor, in shared memory, a trifle; its values stay what they are."""
    try:
        mappings = _of_thread.mappings
    except AttributeError:
        mappings = _of_thread.mappings = _Mappings()
    mappings.give_back()
    mappings.keep(tensor)


class _Mappings:
    """Second mappings of tensors, of one thread."""

    def __init__(self) -> None:
        self._kept: list[tuple[weakref.ref[Any], int, int]] = []

    def keep(self, tensor: Any) -> None:
        storage, kernel = tensor.untyped_storage(), _kernel()
        start = storage.data_ptr() & -mmap.PAGESIZE  # named files begin with a few bytes of torch's
        size = -(-(storage.data_ptr() + storage.nbytes() - start) // mmap.PAGESIZE) * mmap.PAGESIZE
        again = kernel.mremap(start, 0, size, 1)  # of none of its bytes, anywhere: once more
        if again != kernel.refused:  # it does so for what was shared in other ways
            self._kept.append((weakref.ref(tensor), again, size))
            kernel.madvise(start, size, mmap.MADV_DONTNEED)

    def give_back(self) -> None:
        """Those of tensors that are gone."""
        gone = [one for one in self._kept if one[0]() is None]
        self._kept = [one for one in self._kept if one[0]() is not None]
        for _, start, size in gone:
            _kernel().munmap(start, size)

    def __del__(self) -> None:
        for _, start, size in self._kept:
            _kernel().munmap(start, size)


@cache
def _kernel() -> Any:
    """Calls that let go of the interpreter while they are under way."""
    import ctypes

    calls = ctypes.CDLL(None)
    address, size, flags = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    calls.mremap.argtypes, calls.mremap.restype = [address, size, size, flags], address
    calls.madvise.argtypes = [address, size, flags]
    calls.munmap.argtypes = [address, size]
    calls.refused = address(-1).value  # type: ignore[attr-defined]
    return calls
