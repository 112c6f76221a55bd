"""Shortcuts of torch's imports: nobody gets anything else than without them."""

import contextlib
import copy
import inspect
import os
import py_compile
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchett.launch.imports import shortcuts


def frames() -> dict[str, Any]:
    """Frames of a module, of a lambda in it, of text, of text that claims to be of a module."""
    made = {"module": inspect.currentframe(), "lambda": (lambda: inspect.currentframe())()}
    look = "import inspect; found = inspect.currentframe()"
    for name, names in {"text": {}, "claims": {"__name__": "json"}}.items():
        exec(look, names)
        made[name] = names["found"]
    other = types.ModuleType("made_up")
    exec(compile(look, __file__, "exec"), vars(other))
    return made | {"made up": vars(other)["found"], "library": library_frame()}


def library_frame() -> Any:
    """A frame of a module of the standard library."""

    class Closes:
        def close(self) -> None:
            self.frame = sys._getframe(1)

    closes = Closes()
    with contextlib.closing(closes):
        pass
    return closes.frame


def test_the_module_of_a_frame_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = inspect.getmodule
    monkeypatch.setattr(inspect, "getmodule", searched)
    known = frames()
    before = {name: searched(frame) for name, frame in known.items()}
    shortcuts.name_modules_of_frames()
    assert inspect.getmodule is not searched
    assert {name: inspect.getmodule(frame) for name, frame in known.items()} == before
    assert before["module"] is sys.modules[__name__]
    assert before["library"] is sys.modules["contextlib"]
    for thing in (Path, shortcuts.take, shortcuts, 7, "text"):
        assert inspect.getmodule(thing) is searched(thing)


def test_no_file_is_looked_at_for_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "getmodule", inspect.getmodule)
    shortcuts.name_modules_of_frames()
    monkeypatch.setattr(inspect, "getabsfile", lambda *_: pytest.fail("a file was looked at"))
    assert inspect.getmodule(inspect.currentframe()) is sys.modules[__name__]


class Template:
    compiled: list[str]

    def __init__(self, source: str) -> None:
        self.compiled.append(source)
        self.source = source

    def render(self, **names: str) -> str:
        return self.source.format(**names)


@pytest.fixture
def common() -> Any:
    Template.compiled = []
    pytest.importorskip("jinja2")
    made = SimpleNamespace(KernelTemplate=type("KernelTemplate", (), {}))
    made.KernelTemplate._template_from_string = staticmethod(Template)
    shortcuts.compile_templates_late(made)
    return made


def test_templates_are_compiled_once_when_something_of_them_is_wanted(common: Any) -> None:
    one, other = (common.KernelTemplate()._template_from_string(f"{{x}}{n}") for n in (1, 2))
    assert one
    assert Template.compiled == []
    assert [one.render(x="a"), one.render(x="b"), one.source] == ["a1", "b1", "{x}1"]
    assert Template.compiled == ["{x}1"]
    assert copy.deepcopy(other).render(x="c") == "c2"
    with pytest.raises(AttributeError, match="nothing"):
        _ = one.nothing


def test_without_jinja_there_are_no_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcuts, "find_spec", lambda name: None)
    made = SimpleNamespace(KernelTemplate=type("KernelTemplate", (), {}))
    made.KernelTemplate._template_from_string = staticmethod(lambda source: None)
    shortcuts.compile_templates_late(made)
    assert made.KernelTemplate._template_from_string("x") is None


def test_torch_imports_as_ever() -> None:
    """Its libraries by a thread that is gone, its templates whole, its operators registered."""
    pytest.importorskip("torch")
    code = """
import sys, threading
from torchett.launch.imports import libraries, shortcuts
shortcuts.take()
libraries.load_beside()
import torch
assert {"sympy", "networkx"} <= sys.modules.keys()
assert threading.enumerate() == [threading.main_thread()]
from torch._inductor.kernel.mm import mm_template
from torchett.launch.imports.shortcuts import _Late
assert type(mm_template.template) is _Late
assert "indent_except_first" in mm_template.template.environment.filters
source = torch._library.simple_registry.singleton.find("prims::sin").fake_impl.kernel.source
assert source.rpartition(":")[0].endswith(".py"), source
assert torch.ops.prims.sin(torch.zeros(1)).item() == 0.0
print(torch.compile(lambda x: x * 2, backend="aot_eager")(torch.ones(2)).sum().item())
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "4.0\n", done.stderr


def with_sympy(tmp_path: Path, sympy: str, compiled: bool) -> str:
    """What a process says whose torch has no library, and whose sympy is this."""
    (tmp_path / "sympy.py").write_text(sympy)
    if compiled:
        py_compile.compile(str(tmp_path / "sympy.py"))
    (tmp_path / "bz2.py").write_text("raise ModuleNotFoundError('a Python without it')")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "try:\n    import torch._C\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    )
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from torchett.launch.imports import libraries
libraries.load_beside()
class Next:
    def find_spec(fullname, path, target=None):
        if fullname == "torch._C":
            print("asked")
sys.meta_path.insert(1, Next)
import torch
"""
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("sympy", ["raise OSError('broken')", "import torch.missing", "print(7)"])
def test_what_is_broken_beside_torch_does_not_break_it(tmp_path: Path, sympy: str) -> None:
    said = with_sympy(tmp_path, sympy, compiled=True)
    beside = "7\n" if "print" in sympy else ""
    assert said == f"{beside}asked\nNo module named 'torch._C'\n"


def test_nothing_is_compiled_beside_torch(tmp_path: Path) -> None:
    """Many processes may be compiling it at that moment, in the order of imports."""
    said = with_sympy(tmp_path, "print(7)", compiled=False)
    assert said == "asked\nNo module named 'torch._C'\n"
