"""The CPU's vector instructions: the best that work, found with no more compiles than needed."""

import _ctypes
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchett.launch.imports.instructions import _may_hold_code, ask_for_the_best

cpu_vec_isa = pytest.importorskip("torch._inductor.cpu_vec_isa")


class Instructions:
    """A set of instructions as torch knows it: true if a library of it was built and loaded."""

    def __init__(self, name: str, works: bool) -> None:
        self.name, self.works, self.tried = name, works, 0

    def __str__(self) -> str:
        return self.name

    def __bool__(self) -> bool:
        self.tried += 1
        return self.works


@pytest.fixture
def sets(monkeypatch: pytest.MonkeyPatch) -> dict[str, Instructions]:
    """What a machine without amx has; the compiler knows nothing of vnni."""
    works = {"amx_tile": True, "avx512 avx512_vnni": False, "avx512": True, "avx2": True}
    made = {name: Instructions(name, good) for name, good in works.items()}
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", [*made.values()])
    monkeypatch.setattr(cpu_vec_isa, "x86_isa_checker", lambda: ["avx2", "avx512", "avx512_vnni"])
    theirs = cpu_vec_isa.valid_vec_isa_list
    theirs.cache_clear()
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", theirs)
    if hasattr(cpu_vec_isa.VecISA, "_probe_load"):  # to be put back
        monkeypatch.setattr(cpu_vec_isa.VecISA, "_probe_load", cpu_vec_isa.VecISA._probe_load)
    ask_for_the_best(cpu_vec_isa)
    yield made
    theirs.cache_clear()


def test_torch_tries_from_the_best_on_until_one_works(sets: dict[str, Instructions]) -> None:
    for _ in range(2):
        assert cpu_vec_isa.pick_vec_isa() is sets["avx512"]
    assert [one.tried for one in sets.values()] == [0, 1, 1, 0]


def test_who_asks_for_lesser_instructions_gets_them(
    sets: dict[str, Instructions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert cpu_vec_isa.pick_vec_isa() is sets["avx2"]


def test_a_machine_whose_compiler_knows_none_has_none(sets: dict[str, Instructions]) -> None:
    for one in sets.values():
        one.works = False
    assert str(cpu_vec_isa.pick_vec_isa()) == "INVALID_VEC_ISA"


@pytest.mark.skipif(
    not hasattr(cpu_vec_isa.VecISA, "_probe_load"), reason="this torch has no such seam"
)
def test_a_library_is_loaded_here_and_no_interpreter_is_begun_for_it(
    sets: dict[str, Instructions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begun(*args: object, **kwargs: object) -> None:
        raise AssertionError("a process was begun")

    monkeypatch.setattr(subprocess, "run", begun)
    (tmp_path / "broken.so").write_text("no library")
    isa = cpu_vec_isa.VecAVX2()
    assert isa._probe_load(_ctypes.__file__)
    assert not isa._probe_load(str(tmp_path / "broken.so"))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="asked for by compiling on x86 only")
def test_a_child_finds_out_and_its_parent_goes_on(tmp_path: Path) -> None:
    """Who asks later finds the libraries built; who had them built is as it was."""
    code = """
import torch._dynamo, time
from torch._inductor import cpu_vec_isa
from torchett.launch.imports.instructions import ask_beside
theirs = cpu_vec_isa.valid_vec_isa_list
began = time.monotonic()
ask_beside()
print(time.monotonic() - began, cpu_vec_isa.valid_vec_isa_list is theirs)
"""
    library = tmp_path / "library"
    library.mkdir()
    (library / ".key").write_text("as a launcher makes it")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    env["ETT_COMPILE_CACHE"] = str(library)
    done = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, check=True)
    took, untouched = done.stdout.split()
    assert float(took) < 1.0
    assert untouched == b"True"
    until = time.monotonic() + 60
    while not list(tmp_path.rglob("*.so")) and time.monotonic() < until:
        time.sleep(0.05)
    assert list(tmp_path.rglob("*.so"))


def test_they_are_not_asked_for_where_a_library_may_bring_them(tmp_path: Path) -> None:
    assert not _may_hold_code("")
    assert not _may_hold_code(str(tmp_path / "none"))
    (tmp_path / "an-archive").mkdir()
    assert _may_hold_code(str(tmp_path))
    assert _may_hold_code("s3://bucket/library")
