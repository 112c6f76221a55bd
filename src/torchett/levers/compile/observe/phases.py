"""The time of one compile by cause: each nanosecond counts for the innermost phase's cause.

dynamo               ├──────────────────────────────────────────────────┤
  backend_compile            ├──────────────────────────────┤
    async_compile.wait                ├────────────┤
counts for             dynamo  backend    triton     backend   dynamo
"""

from collections import Counter
from typing import Final

from torchett.levers.compile.observe.facts import Part

CAUSE_OF: Final = {
    "dynamo": "dynamo",
    "fullgraph_capture": "dynamo",
    "backend_compile": "backend",
    "entire_backward_compile": "backend",
    "inductor_import": "backend",
    "async_compile.wait": "triton",
    "async_compile.precompile": "triton",
    "compile_file": "triton",
    "CachingAutotuner.slow_precompile_config": "triton",
    "reload_kernel_in_parent": "triton",
    "AotCodeCompiler.compile": "triton",
    "CachingAutotuner.benchmark_all_configs": "autotune",
    "CachingAutotuner.coordinate_descent_tuning": "autotune",
    "CachingAutotuner.combo_sequential_autotune": "autotune",
    "benchmark_codegened_module": "autotune",
    "benchmark_fused_nodes": "autotune",
    "collective_compute_do_bench": "autotune",
    "after_deserialization": "cache_load",
    "AOTAutogradCache.inductor_load": "cache_load",
    "TritonBundler.read_and_emit": "cache_load",
    "TritonBundler.load_cached_static_autotuners": "cache_load",
    "StaticAutotunerFuture.warm_precompile": "cache_load",
    "GraphPickler.loads": "cache_load",
    "CompiledArtifact.load": "cache_load",
    "precompile_load_guards": "cache_load",
}


def cause_of(phase: str, around: str) -> str:
    """The cause of a phase; for an unknown phase, the cause of the phase around it."""
    if phase.endswith(("_template_autotuning", "_template_precompiling")):
        return "autotune"
    if phase.startswith("pgo.get"):
        return "cache_load"
    return CAUSE_OF.get(phase, around)


def part_of(phase: str) -> Part:
    """The part of the graph that is compiled if this is the outermost phase."""
    if phase in ("dynamo", "fullgraph_capture"):
        return "forward"
    return "backward" if phase == "entire_backward_compile" else "runtime"


class CompilePhases:
    """The phases of one compile, as they begin and end."""

    def __init__(self) -> None:
        self.by_ns: Counter[str] = Counter()  # cause → time
        self._open: list[tuple[str, str]] = []  # phase and cause, innermost last
        self._since_ns = 0

    def began(self, phase: str, now_ns: int) -> None:
        around = "backend"
        if self._open:
            around = self._open[-1][1]
            self.by_ns[around] += now_ns - self._since_ns
        self._since_ns = now_ns
        self._open.append((phase, cause_of(phase, around)))

    def ended(self, phase: str, now_ns: int) -> bool:
        """End a phase; whether it was the outermost. Phases inside it that are open end, too."""
        if all(phase != name for name, _ in self._open):
            return False
        self.by_ns[self._open[-1][1]] += now_ns - self._since_ns
        self._since_ns = now_ns
        while self._open.pop()[0] != phase:
            pass
        return not self._open
