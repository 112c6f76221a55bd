"""Reduces a graph's cache entry from all tuned candidates to the kernels that it launches.

A graph's cache entry has every kernel that was compiled for it: hundreds of candidates for matrix
multiplications (max-autotune), and every configuration of a kernel. It lacks the configuration from
coordinate descent, because that is found when the kernel first runs. A later job would write all of
them to disk, build objects for them, and tune again.

    in the job     CachingAutotuner tunes ──► `remember` stores the winner and its rivals
    at its end     `only(entry)`: the kernels its code calls, each with the winning configuration

An entry that is not fully understood stays unchanged. (torch 2.11 to 2.13; a no-op without Triton.)
"""

import ast
import copy
import logging
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from torchett.record.patches import install

MODULE = "torch._inductor.runtime.triton_heuristics"
log = logging.getLogger("torchett")


@dataclass(slots=True)
class _Tuned:
    """The results of tuning in this process."""

    results: dict[tuple[str, int], Any] = field(default_factory=dict)  # from coordinate descent
    hashes: dict[tuple[str, int], str] = field(default_factory=dict)  # chosen among several
    winners: set[str] = field(default_factory=set)
    losers: set[str] = field(default_factory=set)
    running: int = 0
    last_s: float = 0.0  # the end of the last tuning, by the monotonic clock


_tuned = _Tuned()
_installed = False
_compiled = threading.local()  # the results that the descent on this thread has compiled


def tuning() -> bool:
    """Whether a kernel is being tuned now."""
    return _tuned.running > 0


def last_tuned() -> float:
    """The end of the last tuning by the monotonic clock; 0 if there was none."""
    return _tuned.last_s


@contextmanager
def _running() -> Iterator[None]:
    _tuned.running += 1
    try:
        yield
    finally:
        _tuned.running -= 1
        _tuned.last_s = time.monotonic()


def remember(_: ModuleType) -> None:
    """Store the winning configuration of each kernel from now on; `MODULE` is imported."""
    global _installed
    if _installed:
        return
    _installed = True
    for name, make in (
        ("autotune_to_one_config", _around_choice),
        ("_coordinate_descent_tuning", _around_descent),
        ("_precompile_config", _around_compile),
    ):
        install(f"{MODULE}:CachingAutotuner.{name}", make)


def _around_choice(choose: Callable[..., Any]) -> Callable[..., Any]:
    def chosen(self: Any, *args: Any, **kwargs: Any) -> Any:
        rivals = list(self.launchers)
        with _running():
            made = choose(self, *args, **kwargs)
        _quietly(_note_choice, self, rivals)
        return made

    return chosen


def _around_descent(descend: Callable[..., Any]) -> Callable[..., Any]:
    def descended(self: Any, launcher: Any, *args: Any, **kwargs: Any) -> Any:
        _compiled.results = []
        try:
            with _running():
                winner = descend(self, launcher, *args, **kwargs)
            _quietly(_note_descent, self, launcher, winner, _compiled.results)
        finally:
            _compiled.results = None
        return winner

    return descended


def _around_compile(precompile: Callable[..., Any]) -> Callable[..., Any]:
    def precompiled(self: Any, config: Any) -> Any:
        result = precompile(self, config)
        results = getattr(_compiled, "results", None)
        if results is not None:
            results.append(result)
        return result

    return precompiled


def _note_choice(tuner: Any, rivals: list[Any]) -> None:
    winner = tuner.launchers[0]
    _tuned.hashes[_name(tuner)] = winner.cache_hash
    _tuned.winners.add(winner.cache_hash)
    _tuned.losers.update(one.cache_hash for one in rivals if one is not winner)


def _note_descent(tuner: Any, began: Any, winner: Any, results: list[Any]) -> None:
    _tuned.winners.add(winner.cache_hash)
    hashes = {began.cache_hash} | {_hash(result) for result in results}
    _tuned.losers.update(hashes - {winner.cache_hash})
    for result in (*results, *tuner.compile_results):
        if _hash(result) == winner.cache_hash:
            kept = _copied(result)
            kept.config = copy.deepcopy(winner.config)
            kept.config.found_by_coordesc = True
            _tuned.results[_name(tuner)] = kept
            return


def only(content: bytes) -> bytes:
    """A graph's cache entry with only the kernels that it launches.

    `content` comes from torch's memory in this process, never from an archive.
    """
    if b"triton" not in content:
        return content
    try:
        return _only(content)
    except Exception as error:
        log.debug("torchett: a graph is stored with all its candidates: %r", error)
        return content


def _only(content: bytes) -> bytes:
    from torch._inductor.triton_bundler import TritonBundle

    graph = pickle.loads(content)
    bundle = getattr(graph, "_triton_bundle", None)
    if bundle is None or not bundle.kernel_artifacts:
        return content
    keys, names = _called(graph.source_code)
    if not keys:
        return content
    owned = {_hash(r) for one in bundle.static_autotuners for r in one.kernel.compile_results}
    tuners = [_settled(one) for one in bundle.static_autotuners if one.cache_key in keys]
    wanted = {
        (_hash(result), one.kernel.triton_meta.get("device", 0))
        for one in tuners
        for result in one.kernel.compile_results
    }
    kernels = []
    for one in bundle.kernel_artifacts:
        if (one.kernel_hash, one.device) in wanted:
            wanted.discard((one.kernel_hash, one.device))
            kernels.append(one)
        elif one.kernel_hash not in owned and _may_run(one, names):
            kernels.append(one)
    kernels += [_from_disk(name, device) for name, device in sorted(wanted)]
    graph._triton_bundle = TritonBundle(kernels, tuners)
    return pickle.dumps(graph)


def _called(code: str) -> tuple[set[str], set[str]]:
    """Keys of the kernels that generated code calls, and the names of their functions."""
    from torch._inductor.async_compile import CompiledTritonKernels

    keys, names = set(), set()
    for node in ast.walk(ast.parse(code)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "triton"
            and len(node.args) >= 2
            and isinstance(node.args[1], ast.Constant)
            and isinstance(source := node.args[1].value, str)
        ):
            keys.add(CompiledTritonKernels.key(source))
            inner = ast.walk(ast.parse(source))
            names |= {one.name for one in inner if isinstance(one, ast.FunctionDef)}
    return keys, names


def _settled(bundled: Any) -> Any:
    """A bundled tuner with only the winning configuration, if that is known."""
    tuner = bundled.kernel
    name = _name(tuner)
    found = _tuned.results.get(name)
    if found is None:
        chosen = _tuned.hashes.get(name)
        found = next((r for r in tuner.compile_results if _hash(r) == chosen), None)
    if found is not None and any(type(r) is type(found) for r in tuner.compile_results):
        tuner.compile_results = [_copied(found)]
        # Without these settings the loaded tuner would compile further configurations, and repeat
        # the descent: its pickle drops the mark that a configuration was found by descent.
        settled = {"dynamic_scale_rblock": False, "coordinate_descent_tuning": False}
        tuner.inductor_meta = {**tuner.inductor_meta, **settled}
    return bundled


def _copied(result: Any) -> Any:
    """A copy of a result that can be pickled, although its kernel may be loaded on the device."""
    kept = copy.copy(result)
    kept.kernel = copy.copy(result.kernel)  # copied by its pickle state: without device handles
    kept.kernel.cubin_raw = None  # the bundle has the file
    kept.kernel.__dict__.pop("C_impl", None)  # a cached property
    return kept


def _may_run(kernel: Any, names: set[str]) -> bool:
    """Whether the code may launch a kernel without a tuner: it calls it, and it did not lose."""
    if kernel.kernel_hash in _tuned.losers - _tuned.winners:
        return False
    stems = {os.path.splitext(one.filename)[0] for one in kernel.artifacts}
    return bool(stems & names)


def _from_disk(name: str, device: int) -> Any:
    """A kernel compiled after the graph was bundled, read from disk and bundled as torch does."""
    from torch._inductor.runtime.runtime_utils import triton_cache_dir
    from torch._inductor.triton_bundler import (
        TritonBundler,
        TritonKernelArtifact,
        TritonKernelArtifacts,
    )

    folder = os.path.join(triton_cache_dir(device), name)
    files = []
    for filename in sorted(os.listdir(folder)):
        with open(os.path.join(folder, filename), "rb") as file:
            payload = file.read()
        if filename.endswith(".json"):
            payload = payload.replace(folder.encode(), TritonBundler._REPLACE_BYTES)
        files.append(TritonKernelArtifact(filename, payload))
    return TritonKernelArtifacts(name, device, files)


def _name(tuner: Any) -> tuple[str, int]:
    return (os.path.basename(tuner.filename or ""), tuner.triton_meta.get("device", 0))


def _hash(result: Any) -> str:
    from torch._inductor.runtime.runtime_utils import triton_hash_to_path_key

    return str(triton_hash_to_path_key(result.kernel.hash))


def _quietly(note: Callable[..., None], *args: Any) -> None:
    try:
        note(*args)
    except Exception as error:
        log.debug("torchett: a winner was not stored: %r", error)
