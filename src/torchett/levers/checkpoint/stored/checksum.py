"""CRC-32 of a large file by several threads: of each part, then joined.

    file     ├──── part 0 ────┼──── part 1 ────┼── part 2 ──┤
    thread        crc 0            crc 1           crc 2         zlib, without the GIL
    joined   crc 0 ─ moved past part 1 ─ ⊕ crc 1 ─ moved past part 2 ─ ⊕ crc 2

A CRC is linear: what zeros do to it is a 32 × 32 matrix of bits, one for each length of a part.
"""

import functools
import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import IO

CHUNK = 8 << 20
PART = 64 << 20
_MOST_THREADS = 8

Matrix = tuple[int, ...]  # its columns
Open = Callable[[], AbstractContextManager[IO[bytes]]]


def crc_of(open_file: Open, size: int) -> int:
    """The CRC-32 of the first `size` bytes."""
    parts = [(at, min(PART, size - at)) for at in range(0, size, PART)]
    threads = min(len(parts), len(os.sched_getaffinity(0)), _MOST_THREADS)
    if threads < 2:
        return _part(open_file, 0, size)
    with ThreadPoolExecutor(threads, "ett-crc") as pool:
        crcs = list(pool.map(lambda part: _part(open_file, *part), parts))
    crc = 0
    for (_, length), next_crc in zip(parts, crcs, strict=True):
        crc = joined(crc, next_crc, length)
    return crc


def joined(first: int, second: int, length: int) -> int:
    """The CRC of two stretches of bytes, from each one's and the length of the second."""
    return _times(_past(length), first) ^ second


def _part(open_file: Open, at: int, length: int) -> int:
    crc = 0
    with open_file() as stream:
        stream.seek(at)
        while length and (data := stream.read(min(CHUNK, length))):
            crc = zlib.crc32(data, crc)
            length -= len(data)
    return crc


@functools.lru_cache(maxsize=64)
def _past(length: int) -> Matrix:
    """What `length` bytes of zeros do to a CRC."""
    power: Matrix = (0xEDB88320, *(1 << bit for bit in range(31)))  # of one zero bit
    for _ in range(3):
        power = _after(power, power)
    done: Matrix = tuple(1 << bit for bit in range(32))
    while length:
        if length & 1:
            done = _after(power, done)
        power = _after(power, power)
        length >>= 1
    return done


def _after(second: Matrix, first: Matrix) -> Matrix:
    return tuple(_times(second, column) for column in first)


def _times(matrix: Matrix, vector: int) -> int:
    found, bit = 0, 0
    while vector:
        if vector & 1:
            found ^= matrix[bit]
        vector >>= 1
        bit += 1
    return found
