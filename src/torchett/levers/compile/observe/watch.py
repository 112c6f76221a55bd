"""Records every compile as a span, and as a fact with its reason and its time by cause.

    main thread    ── step ──┐ dynamo ┊ backend ┊ kernels ┊ backend ┊ dynamo │── step continues
                             └─ one span: pt2_compile, or recompile after the first step ─┘

Torch logs the begin and end of each phase (`adapter.events`). The outermost phase on a thread is
the compile; each nanosecond of it counts for the innermost phase's cause.

Foreground or background. A compile on the trainer's thread stops the trainer. One on another Python
thread (a warm-up) does not. A thread of the autograd engine compiles a backward while some thread
waits in `loss.backward()`. If the trainer's thread waits, that compile is in the foreground, too.
"""

import hashlib
import json
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Final

from torchett.levers.compile.adapter import events
from torchett.levers.compile.observe.facts import KERNEL, KIND, Compile, Part, keep
from torchett.levers.compile.observe.phases import CompilePhases, part_of
from torchett.record import api
from torchett.record.clock import now_ns
from torchett.record.plugins import when_imported

_WAITED_FOR: Final = {"guard_collective"}  # logged by torch like a compile, on every call
_ROOTS: Final = (  # outermost phases of compiles on other threads than the trainer's
    "dynamo",
    "entire_backward_compile",
    "fullgraph_capture",
    "CachingAutotuner.",
    "CUDAGraph",
    "cudagraph",
)
_MOST_REASONS = 8
_MOST_KERNELS = 100
_TEMPLATE: Final = ("_template_autotuning", "_template_precompiling")
_MOST_WORDS = 1200
_SHORT_NS = 5_000_000  # a shorter compile without a graph is a span, but not a fact
_MOST_IDS = 4096


def install_plugin() -> None:
    """Record the compiles of this process from the first one on."""
    when_imported("torch._dynamo.utils", _watch_phases)
    when_imported("torch._dynamo.convert_frame", _watch_reasons)


def _watch_phases(_: ModuleType) -> None:
    events.listen_to_phases(_watcher)


def _watch_reasons(_: ModuleType) -> None:
    events.listen_to_reasons(_watcher)


@dataclass(slots=True)
class _Running:
    """A running compile on one thread."""

    began_ns: int
    compile_id: str
    part: Part
    again: bool
    background: bool
    span: Any
    phases: CompilePhases = field(default_factory=CompilePhases)
    caches: Counter[str] = field(default_factory=Counter)
    choosing: dict[str, int] = field(default_factory=dict)  # phase → begin, of Inductor's choices
    chosen: list[tuple[str, int]] = field(default_factory=list)  # between templates: phase, time
    reasons: tuple[str, ...] = ()
    metrics: Any = None


class Watcher:
    """Receives the events of `adapter.events` and records compiles."""

    def __init__(self) -> None:
        self._here = threading.local()
        self._in_background: set[str] = set()
        self._places: dict[str, tuple[str, str, int]] = {}  # frame → function, file, line

    def began(self, phase: str, compile_id: str | None) -> None:
        running: _Running | None = getattr(self._here, "running", None)
        now = now_ns()
        if running is None:
            if phase in _WAITED_FOR:
                return
            ident = threading.get_ident()
            if ident != api.trainer_thread() and not phase.startswith(_ROOTS):
                return
            self._settle()
            running = self._here.running = self._open(phase, compile_id or "-", ident, now)
        running.phases.began(phase, now)
        if phase.endswith(_TEMPLATE):
            running.choosing[phase] = now

    def ended(self, phase: str) -> None:
        running: _Running | None = getattr(self._here, "running", None)
        now = now_ns()
        if running is None:
            return
        if phase in running.choosing:
            running.chosen.append((phase, now - running.choosing.pop(phase)))
        if not running.phases.ended(phase, now):
            return
        self._here.running = None
        account = "recompile" if running.again else "pt2_compile"
        if running.span is not None:
            running.span.__exit__(None, None, None)
        else:
            api.past_span(account, running.began_ns, now, background=running.background)
        self._here.over = (running, now)
        if running.part != "backward":  # the metrics of a backward come later
            self._settle()

    def happened(self, what: str) -> None:
        running: _Running | None = getattr(self._here, "running", None)
        if running is not None and "cache" in what:
            running.caches[what] += 1

    def failed_guards(self, reasons: list[str]) -> None:
        running: _Running | None = getattr(self._here, "running", None)
        if running is not None and not running.reasons:
            running.reasons = tuple(_short(reason) for reason in reasons[:_MOST_REASONS])

    def measured(self, metrics: Any) -> None:
        running: _Running | None = getattr(self._here, "running", None)
        if running is not None:
            running.metrics = metrics
            return
        over = getattr(self._here, "over", None)
        if over is not None and getattr(metrics, "is_forward", None) is False:
            over[0].metrics = metrics
            self._settle()

    def _open(self, phase: str, compile_id: str, ident: int, now: int) -> _Running:
        background = self._is_background(ident, compile_id)
        recorder = api.recorder()
        again = recorder is not None and recorder.has_stepped()
        span = None
        if recorder is not None:
            span = recorder.span("recompile" if again else "pt2_compile", background)
            span.__enter__()
        return _Running(now, compile_id, part_of(phase), again, background, span)

    def _is_background(self, ident: int, compile_id: str) -> bool:
        trainer = api.trainer_thread()
        if ident == trainer:
            return False
        if events.is_python_thread(ident):
            if len(self._in_background) < _MOST_IDS:
                self._in_background.add(compile_id)
            return True
        waiting = events.waiting_in_backward() - {ident}
        if waiting - {trainer} and compile_id in self._in_background:
            return True  # another thread compiled the forward: most likely this is its backward
        return bool(waiting) and trainer not in waiting

    def _settle(self) -> None:
        """Record the compile that has ended on this thread."""
        over: tuple[_Running, int] | None = getattr(self._here, "over", None)
        if over is None:
            return
        self._here.over = None
        running, ended_ns = over
        metrics = running.metrics
        has_graph = bool(getattr(metrics, "graph_op_count", 0)) or running.part != "forward"
        failed = getattr(metrics, "fail_reason", None)
        if not has_graph and not failed and ended_ns - running.began_ns < _SHORT_NS:
            return
        reasons = running.reasons
        if not reasons and getattr(metrics, "recompile_reason", None):
            reasons = (_short(metrics.recompile_reason),)
        fact = Compile(
            id=running.compile_id,
            part=running.part,
            t0_ns=running.began_ns,
            t1_ns=ended_ns,
            by_ns=dict(running.phases.by_ns),
            again=running.again,
            background=running.background,
            reasons=reasons,
            failed=_short(failed) if failed else None,
            nodes=getattr(metrics, "graph_node_count", None),
            caches=dict(running.caches),
        )
        keep(KIND, self._placed(fact, metrics).to_json())
        for kernel, took in [*_kernels(metrics), *_templates(running.chosen)][:_MOST_KERNELS]:
            keep(KERNEL, {"kernel": kernel, "origin": "inductor", **took})

    def _placed(self, fact: Compile, metrics: Any) -> Compile:
        """The fact with its function; a backward has the function of its forward."""
        frame = fact.id.partition("/")[0]
        name, file = getattr(metrics, "co_name", None), getattr(metrics, "co_filename", None)
        line = getattr(metrics, "co_firstlineno", None)
        if name and file and isinstance(line, int) and len(self._places) < _MOST_IDS:
            self._places[frame] = (name, file, line)
        if frame not in self._places:
            return fact
        name, file, line = self._places[frame]
        sources = events.changed_sizes(file, line, name) if fact.part == "forward" else {}
        return replace(
            fact, name=name, file=file, line=line, code=source_hash(file, line), sources=sources
        )


def _kernels(metrics: Any) -> list[tuple[str, dict[str, float]]]:
    """The kernels that took longest to compile, with their times, from the metrics."""
    times = getattr(metrics, "triton_kernel_compile_times_us", None)
    try:
        return [(str(name), {"compiling_s": us / 1e6}) for name, us in json.loads(times or "[]")]
    except (TypeError, ValueError):
        return []


def _templates(chosen: list[tuple[str, int]]) -> list[tuple[str, dict[str, float]]]:
    """The times of choosing between implementations of operators such as matrix products."""
    found = []
    for phase, ns in chosen:
        name, _, what = phase.rpartition("_template_")
        took = {"compiling_s": ns / 1e9}
        if what == "autotuning":
            took = {"tuning_s": ns / 1e9, "benchmarks": 1}  # of all its candidates
        found.append((f"{name} (template)", took))
    return found


def source_hash(file: str, line: int) -> str | None:
    """A hash of the function that begins at this line; it does not depend on the line number."""
    import inspect
    import linecache

    lines = linecache.getlines(file)[line - 1 :]
    if not lines:
        return None
    try:
        block = inspect.getblock(lines)
    except Exception:
        block = lines[:1]
    return hashlib.sha256("".join(block).encode()).hexdigest()[:16]


def _short(reason: Any) -> str:
    return str(reason).partition("\nUser stack trace")[0].strip()[:_MOST_WORDS]


_watcher = Watcher()
