"""Compiles packages to bytecode with many processes, in the order in which torch imports them.

    python -X pycache_prefix=DIR ahead.py PROCESSES FOLDER…

A script that imports nothing of ours. The import of torch begins at the same moment, and finds
bytecode where these are ahead of it. What cannot be compiled is left to the import.
"""

import os
import sys
from importlib.util import cache_from_source
from py_compile import compile as compile_source

_NEVER_IMPORTED = ("_internal", "test", "tests", "benchmark", "benchmarks", "onnx", "f2py")
# `import torch` goes through these folders, in about this order; then dynamo, then inductor.
_IN_ORDER = (
    *("torch", "numpy", "numpy/_core", "numpy/lib", "torch/cuda", "torch/nn"),
    *("torch/utils", "torch/distributed", "torchgen", "torch/autograd", "torch/_library"),
    *("torch/package", "torch/backends", "torch/distributions", "torch/jit"),
    *("torch/multiprocessing", "torch/fx", "torch/_logging", "torch/optim", "torch/ao"),
    *("torch/quantization", "torch/masked", "torch/_subclasses", "torch/export"),
    *("torch/_higher_order_ops", "torch/_prims", "torch/_decomp", "torch/_refs"),
    *("torch/_native", "torch/_dynamo", "triton", "sympy", "torch/_functorch"),
    *("torch/_inductor", "networkx"),
)


def sources(folders: list[str]) -> list[str]:
    """The packages' sources in the order in which they will be needed, large ones first."""
    found: list[tuple[int, int, str]] = []
    for package in folders:
        root = os.path.dirname(package)
        for folder, below, names in os.walk(package):
            below[:] = [name for name in below if name not in _NEVER_IMPORTED]
            place = "/".join(os.path.relpath(folder, root).split(os.sep)[:2])
            rank = _IN_ORDER.index(place) if place in _IN_ORDER else len(_IN_ORDER)
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)
                    found.append((rank, -os.lstat(path).st_size, path))
    return [path for _, _, path in sorted(found)]


def compile_all(paths: list[str]) -> None:
    for path in paths:
        try:
            if not os.path.exists(cache_from_source(path)):
                compile_source(path, quiet=2)
        except Exception:  # not for this version of Python, or the disk is full
            pass


def main() -> None:
    processes, *folders = sys.argv[1:]
    paths = sources(folders)
    for share in range(int(processes)):
        if os.fork() == 0:
            compile_all(paths[share :: int(processes)])
            os._exit(0)
    for _ in range(int(processes)):
        os.wait()


if __name__ == "__main__":
    main()
