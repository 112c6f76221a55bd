"""Winners, not candidates: what a graph will launch, of all the kernels that tuning compiled.

A graph's cache entry carries every kernel that was compiled for it: hundreds of candidates for
matrix multiplications (max-autotune), every configuration of a kernel, but not the one that
coordinate descent found, because that happens when the kernel first runs. A later job writes
them all to disk, builds objects for them, and tunes again.

    in the job     CachingAutotuner tunes ──► `remember` notes the winner and its rivals
    when it keeps  `only(entry)`: the kernels its code calls, each in the one form that won

Whatever cannot be told for sure stays as it was. (torch 2.11 to 2.13; without Triton: nothing.)
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

MODULE = "torch._inductor.runtime.triton_heuristics"
log = logging.getLogger("torchett")


@dataclass(slots=True)
class _Tuned:
    """What this process learned by tuning."""

    results: dict[tuple[str, int], Any] = field(default_factory=dict)  # found by descent
    hashes: dict[tuple[str, int], str] = field(default_factory=dict)  # chosen among several
    winners: set[str] = field(default_factory=set)
    losers: set[str] = field(default_factory=set)
    under_way: int = 0
    last_s: float = 0.0  # when a tuning last ended, by the monotonic clock


_tuned = _Tuned()
_compiled = threading.local()  # what the descent under way on this thread compiles


def tuning() -> bool:
    """Whether a kernel is being tuned right now."""
    return _tuned.under_way > 0


def last_tuned() -> float:
    """When a tuning last ended, by the monotonic clock; 0 if none has."""
    return _tuned.last_s


@contextmanager
def _under_way() -> Iterator[None]:
    _tuned.under_way += 1
    try:
        yield
    finally:
        _tuned.under_way -= 1
        _tuned.last_s = time.monotonic()


def remember(heuristics: ModuleType) -> None:
    """Note from now on which configuration of a kernel wins; the module is `MODULE`."""
    CachingAutotuner = heuristics.CachingAutotuner  # noqa: N806
    if getattr(CachingAutotuner, "_ett_remembers", False):
        return
    for name, around in (
        ("autotune_to_one_config", _around_choice),
        ("_coordinate_descent_tuning", _around_descent),
        ("_precompile_config", _around_compile),
    ):
        before = getattr(CachingAutotuner, name, None)
        if before is None:
            log.debug("torchett: winners are not noted: no CachingAutotuner.%s", name)
            return
        setattr(CachingAutotuner, name, around(before))
    CachingAutotuner._ett_remembers = True


def _around_choice(choose: Callable[..., Any]) -> Callable[..., Any]:
    def chosen(self: Any, *args: Any, **kwargs: Any) -> Any:
        rivals = list(self.launchers)
        with _under_way():
            made = choose(self, *args, **kwargs)
        _quietly(_note_choice, self, rivals)
        return made

    return chosen


def _around_descent(descend: Callable[..., Any]) -> Callable[..., Any]:
    def descended(self: Any, launcher: Any, *args: Any, **kwargs: Any) -> Any:
        _compiled.results = []
        try:
            with _under_way():
                winner = descend(self, launcher, *args, **kwargs)
            _quietly(_note_descent, self, launcher, winner, _compiled.results)
        finally:
            _compiled.results = None
        return winner

    return descended


def _around_compile(precompile: Callable[..., Any]) -> Callable[..., Any]:
    def precompiled(self: Any, config: Any) -> Any:
        result = precompile(self, config)
        under_way = getattr(_compiled, "results", None)
        if under_way is not None:
            under_way.append(result)
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
    """A graph's cache entry with the kernels it will launch and no others.

    `content` comes from torch's memory in this process, never from an archive.
    """
    if b"triton" not in content:
        return content
    try:
        return _only(content)
    except Exception as error:
        log.debug("torchett: a graph is kept with all its candidates: %r", error)
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
    """A bundled tuner with the one configuration that won, if we saw it win."""
    tuner = bundled.kernel
    name = _name(tuner)
    found = _tuned.results.get(name)
    if found is None:
        chosen = _tuned.hashes.get(name)
        found = next((r for r in tuner.compile_results if _hash(r) == chosen), None)
    if found is not None and any(type(r) is type(found) for r in tuner.compile_results):
        tuner.compile_results = [_copied(found)]
        # When it is loaded it would compile further configurations to choose from, and begin its
        # descent anew: that a configuration was found by one, its pickle forgets.
        settled = {"dynamic_scale_rblock": False, "coordinate_descent_tuning": False}
        tuner.inductor_meta = {**tuner.inductor_meta, **settled}
    return bundled


def _copied(result: Any) -> Any:
    """A copy that can be pickled, of a result whose kernel may be loaded on the device."""
    kept = copy.copy(result)
    kept.kernel = copy.copy(result.kernel)  # by its pickle's state: without handles of the device
    kept.kernel.cubin_raw = None  # the bundle has the file
    kept.kernel.__dict__.pop("C_impl", None)  # a cached property, made again when asked for
    return kept


def _may_run(kernel: Any, names: set[str]) -> bool:
    """Whether a kernel that no tuner owns is one of the code's own, and did not lose."""
    if kernel.kernel_hash in _tuned.losers - _tuned.winners:
        return False
    stems = {os.path.splitext(one.filename)[0] for one in kernel.artifacts}
    return bool(stems & names)


def _from_disk(name: str, device: int) -> Any:
    """A kernel that was compiled when the graph was bundled already, as torch bundles one."""
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
        log.debug("torchett: a winner was not noted: %r", error)
