"""The CPU's vector instructions: the C++ compiler is asked for the best that work, and no others.

    torch   avx512_vnni ✓   avx512 ✓   avx2 ✓     six little libraries built and loaded; the first
    here    avx512_vnni ✓                         set is used: three

In an empty cache that takes 2.6 s instead of 6.6 on two cores; the choice is the same. Whether a
library can be loaded is tried here, where torch's own are loaded already, and not by an interpreter
that loads them for it: a third of a second each, of every rank. A process that has a core to spare
while it imports has them built beside:

    imports  torch ── dynamo ─┬─ inductor ──┬ fork ─ rank: model ── traces ── lowers: there they are
    child                     └─ g++ ─ g++ ─ g++ ─────────────────┤
"""

import ctypes
import functools
import os
import platform
from itertools import islice
from typing import Any


def ask_beside() -> None:
    """Have a child find out, into the cache; where kernels are the CPU's, and no thread runs.

    Not where a library of compiled code may bring the answer.
    """
    import torch

    if torch.cuda.is_available() or len(os.listdir("/proc/self/task")) > 1:
        return
    if _may_hold_code(os.environ.get("ETT_COMPILE_CACHE", "")):
        return
    if os.fork() == 0:
        try:
            from torch._inductor.cpu_vec_isa import pick_vec_isa

            pick_vec_isa()
        finally:
            os._exit(0)


def _may_hold_code(library: str) -> bool:
    """Whether anything but keys and locks is in a library, as far as that is known at once."""
    if "://" in library:
        return True
    return os.path.isdir(library) and any(not name.startswith(".") for name in os.listdir(library))


def ask_for_the_best(cpu_vec_isa: Any) -> None:
    """Have torch try sets of instructions from the best on, until one works."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return
    all_that_work = cpu_vec_isa.valid_vec_isa_list
    candidates, known = cpu_vec_isa.supported_vec_isa_list, cpu_vec_isa.x86_isa_checker

    @functools.cache
    def the_best() -> list[Any]:
        flags = known()
        may_work = (isa for isa in candidates if all(flag in flags for flag in str(isa).split()))
        return list(islice(filter(None, may_work), 1))  # true: it was built and loaded

    @functools.wraps(all_that_work)
    def valid_vec_isa_list() -> list[Any]:
        simdlen = cpu_vec_isa.config.cpp.simdlen
        wants_another = simdlen is not None or "ATEN_CPU_CAPABILITY" in os.environ
        found: list[Any] = all_that_work() if wants_another else the_best()
        return found

    cpu_vec_isa.valid_vec_isa_list = valid_vec_isa_list
    if hasattr(cpu_vec_isa.VecISA, "_probe_load"):  # not in every torch
        cpu_vec_isa.VecISA._probe_load = _can_be_loaded


def _can_be_loaded(isa: Any, path: str) -> bool:
    """Nothing in it is run: it has a function that nobody calls."""
    try:
        ctypes.CDLL(path)
    except OSError:
        return False
    return True
