"""When a trained module begins a forward pass: the first sign of work of a step.

    optimizer.param_groups ─► the outermost modules that hold those parameters
                                  │ one call is noted a step, none of the modules inside
                                  ▼
    net(x) ─► torch's own place for a call that replaces a module's: _compiled_call_impl

torch uses that place for `net.compile()`. What lies there is neither copied nor saved with a
module, is no hook that `torch.compile` guards on, and is looked at by eager calls alone. A module
whose outermost module is never called (`net.encoder(x)`) is watched one level further in.
"""

import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torchett.record import patches

PLACE = "torch.nn.modules.module:Module._compiled_call_impl"
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_LOOKS = 32  # each goes through all modules
_MOST_MODULES = 32
_LEVELS = 3
_MANY_MADE = 1000  # modules; above it, entries of deleted ones are removed
_UNSEEN = 2  # steps without a forward pass of the modules watched


class Forwards:
    """The modules that are watched; `begins(module)` is called first."""

    def __init__(self, begins: Callable[[Any], bool], ends: Callable[[], None]) -> None:
        self._begins, self._ends = begins, ends
        self._made: list[weakref.ref[Any]] = []
        self._most_made = _MANY_MADE
        self._watched: list[weakref.ref[Any]] = []
        self._optimizers: set[int] = set()
        self._looks = _LOOKS
        self._levels = _LEVELS
        self._called = False
        self._without = 0  # steps

    def made(self, module: Any) -> None:
        """A module was made, copied or loaded."""
        self._made.append(weakref.ref(module))
        if len(self._made) > self._most_made:
            self._made = [ref for ref in self._made if ref() is not None]
            self._most_made = max(_MANY_MADE, 2 * len(self._made))

    def watch(self, optimizer: Any) -> None:
        """Watch the modules that this optimizer trains (None: whatever has parameters)."""
        key = id(optimizer)
        if key in self._optimizers or not self._looks:
            return
        self._looks -= 1
        self._optimizers.add(key)
        groups = getattr(optimizer, "param_groups", [])
        compiled = has_compiled()
        trained = {id(p) for group in groups for p in group["params"]}
        for module in outermost(
            [m for m in (ref() for ref in self._made) if m is not None], trained
        ):
            self._watch(module, compiled)

    def knows(self, optimizer: Any) -> bool:
        """Whether the modules of this optimizer are already known."""
        return id(optimizer) in self._optimizers or not self._looks

    def _watch(self, module: Any, compiled: bool) -> None:
        if compiled and any(getattr(module, name, None) for name in _HOOKS):
            return  # where a compiled function calls it, it would be compiled again
        if len(self._watched) < _MOST_MODULES and patches.install_on(
            module, PLACE, lambda plain: _Call(self, module, plain)
        ):
            self._watched.append(weakref.ref(module))

    def begin(self, module: Any) -> bool:
        """A watched module is called; returns whether its end must be reported."""
        self._called = True
        return self._begins(module)

    def end(self) -> None:
        self._ends()

    def step_over(self) -> None:
        """A step is over: if none of the modules was called in it, watch their submodules."""
        if not self._levels:
            return
        if self._called:
            self._levels = 0
            return
        self._without += 1
        if self._without == _UNSEEN:
            self._without = 0
            self._levels -= 1
            outer, self._watched = self._watched, []
            for reference in outer:
                module = reference()
                for inner in module.children() if module is not None else ():
                    if next(inner.parameters(), None) is not None:
                        self._watch(inner, True)


class _Call:
    """Replaces a module's call, reports it, and makes the original call."""

    is_ours = True

    def __init__(self, forwards: Forwards, module: Any, plain: Any) -> None:
        self._forwards, self._plain = forwards, plain
        self._module = weakref.ref(module)  # must not keep the module alive

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module: Any = self._module()
        ends = self._forwards.begin(module)
        result = (self._plain or module._call_impl)(*args, **kwargs)
        if ends:
            self._forwards.end()
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a copy of a module's attributes has none of it

    def __deepcopy__(self, memo: Any) -> None:
        return None


def outermost(modules: Sequence[Any], trained: set[int]) -> Iterable[Any]:
    """Those that hold these parameters (by id; empty: any), without those inside others."""
    inside: set[int] = set()
    for one in modules:
        inside.update(map(id, vars(one).get("_modules", {}).values()))
    for one in modules:
        if id(one) not in inside:
            held = one.parameters()
            if any(id(p) in trained for p in held) if trained else any(True for _ in held):
                yield one


def has_compiled() -> bool:
    """Whether torch.compile has compiled anything here."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"]["ok"])
