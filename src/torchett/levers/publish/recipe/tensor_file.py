"""A safetensors file that is filled in place: tensors larger than memory are written bit by bit.

with new_tensors(path, {"a": Spec((3, 4), torch.float32)}) as tensors:
    tensors["a"][0:2] = …                  # a view of the file
"""

import ctypes
import json
import math
import mmap
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAMES = {
    "torch.float64": "F64", "torch.float32": "F32", "torch.float16": "F16",
    "torch.bfloat16": "BF16", "torch.int64": "I64", "torch.int32": "I32", "torch.int16": "I16",
    "torch.int8": "I8", "torch.uint8": "U8", "torch.bool": "BOOL",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: Any

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype.itemsize)


@contextmanager
def new_tensors(path: Path, specs: Mapping[str, Spec]) -> Iterator[dict[str, Any]]:
    """Views of a new file's tensors, to be filled; the file is whole and durable afterwards.

    OSError where there is no room, before anything is filled in.
    """
    import torch

    ordered = sorted(specs.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header, data, at = _header(ordered)
    size = len(data) + at
    with open(path, "wb+") as file:
        os.posix_fallocate(file.fileno(), 0, max(size, 1))
        file.write(data)
        file.flush()
        memory = mmap.mmap(file.fileno(), size)
        views = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, spec in ordered:
                begin = len(data) + header[name]["data_offsets"][0]
                count = math.prod(spec.shape)
                if count:
                    flat = torch.frombuffer(memory, dtype=spec.dtype, count=count, offset=begin)
                    views[name] = flat.view(spec.shape)
                else:
                    views[name] = torch.empty(spec.shape, dtype=spec.dtype)
        yield views
        views.clear()
        memory.flush()
        os.fsync(file.fileno())


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write tensors that are in memory."""
    specs = {name: Spec(tuple(one.shape), one.dtype) for name, one in tensors.items()}
    with new_tensors(path, specs) as views:
        for name, view in views.items():
            view.copy_(tensors[name])


def _header(ordered: list[tuple[str, Spec]]) -> tuple[dict[str, Any], bytes, int]:
    header: dict[str, Any] = {}
    at = 0
    for name, spec in ordered:
        header[name] = {
            "dtype": _NAMES[str(spec.dtype)],
            "shape": list(spec.shape),
            "data_offsets": [at, at + spec.nbytes],
        }
        at += spec.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    return header, len(text).to_bytes(8, "little") + text, at


def let_go(tensor: Any) -> None:
    """Have the pages of a view of a file written and taken from memory; they are read again."""
    page = mmap.PAGESIZE
    begin = -(-tensor.data_ptr() // page) * page
    length = (tensor.data_ptr() + tensor.nbytes - begin) // page * page
    if length > 0:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.msync(ctypes.c_void_p(begin), ctypes.c_size_t(length), 4)  # MS_SYNC
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), 4)  # MADV_DONTNEED
