"""Bytecode in one file: what Python would import, whatever has become of the file."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchett.launch.imports import bundle
from torchett.launch.levers import Levers

PARTS = [f"part_{n}" for n in range(20)]
TELL = """
import json, sys
from torchett.launch.imports import bundle
bundle.board()
import torch, torch.nn, torch.nn.layers, small
layers = sys.modules["torch.nn.layers"]
spec = layers.__spec__
finder = bundle._finder()
print(json.dumps({
    "says": [torch.says, torch.nn.says, layers.says, small.says],
    "file": layers.__file__, "cached": layers.__cached__, "path": list(torch.nn.__path__),
    "package": layers.__package__, "source": spec.loader.get_source("torch.nn.layers"),
    "layer": repr(layers.Layer(7)), "equal": layers.Layer(7) == layers.Layer(7),
    "line": layers.Layer.__init__.__code__.co_filename, "where": layers.f.__code__.co_filename,
    "read": sorted(n for n, m in sys.modules.items()
                   if isinstance(getattr(m, "__loader__", None), bundle._Loader)),
    "texts": len(bundle._texts), "bundle": finder.bundle is not None,
}))
bundle.write()
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An installation of something that is called torch."""
    files = {
        "torch/__init__.py": "says = 'torch'\n",
        "torch/nn/__init__.py": "says = 'nn'\nfrom torch.nn import " + ", ".join(PARTS) + "\n",
        **{f"torch/nn/{name}.py": "" for name in PARTS},
        "torch/nn/layers.py": (
            "import dataclasses\nsays = 'layers'\ndef f(): pass\n"
            "@dataclasses.dataclass\nclass Layer:\n    width: int\n"
        ),
        "small.py": "says = 'small'\n",
    }
    for name, text in files.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "site"


def imported(site: Path, *path: Path, **more: str) -> dict[str, object]:
    """What a process finds that imports it."""
    src = str(Path(bundle.__file__).parents[2])
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "PYTHON"))}
    env |= {"PYTHONPATH": os.pathsep.join(map(str, (*path, site, src)))}
    env |= {"ETT_BYTECODE": str(site.parent / "kept"), **more}
    done = subprocess.run([sys.executable, "-c", TELL], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def the_file(site: Path) -> Path:
    [path] = (site.parent / "kept").glob("imports-*.ett")
    return path


def forget_bytecode(site: Path) -> None:
    for path in site.rglob("*.pyc"):
        path.unlink()


OURS = ["small", "torch", "torch.nn", "torch.nn.layers"]


def test_what_one_process_imported_the_next_reads_and_it_is_the_same(site: Path) -> None:
    first = imported(site)
    assert first["read"] == []
    assert first["bundle"] is False
    written = the_file(site).stat().st_mtime_ns
    forget_bytecode(site)
    second = imported(site)
    assert set(OURS) <= set(second["read"])
    assert not list(site.rglob("*.pyc")), "nobody compiled anything"
    assert the_file(site).stat().st_mtime_ns == written, "and nothing was written again"
    changed = {"read", "bundle"}
    assert {k: v for k, v in first.items() if k not in changed} == {
        k: v for k, v in second.items() if k not in changed
    }
    assert second["texts"] == 3  # __init__, __repr__ and __eq__: neither more nor other ones


def test_a_source_that_has_changed_is_read_and_the_bundle_written_anew(site: Path) -> None:
    imported(site)
    written = the_file(site).stat().st_mtime_ns
    (site / "torch" / "nn" / "layers.py").write_text(
        (site / "torch" / "nn" / "layers.py").read_text().replace("'layers'", "'new layers'")
    )
    for name in PARTS:
        os.utime(site / "torch" / "nn" / f"{name}.py", (1, 1))
    found = imported(site)
    assert found["says"] == ["torch", "nn", "new layers", "small"]
    stale = {"torch.nn.layers", *(f"torch.nn.{name}" for name in PARTS)}
    assert stale.isdisjoint(found["read"])
    assert "torch.nn" in found["read"]
    assert the_file(site).stat().st_mtime_ns != written
    assert stale <= set(imported(site)["read"])


def test_what_stands_in_front_on_the_path_is_imported(site: Path, tmp_path: Path) -> None:
    imported(site)
    (tmp_path / "front").mkdir()
    (tmp_path / "front" / "small.py").write_text("says = 'another'\n")
    found = imported(site, tmp_path / "front")
    assert found["says"] == ["torch", "nn", "layers", "another"]


def test_a_module_that_has_become_a_package_is_found(site: Path) -> None:
    imported(site)
    layers = site / "torch" / "nn" / "layers.py"
    (layers.with_suffix("")).mkdir()
    layers.rename(layers.with_suffix("") / "__init__.py")
    assert imported(site)["file"] == str(layers.with_suffix("") / "__init__.py")


@pytest.mark.parametrize("at", [0.0, 0.1, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_a_damaged_bundle_harms_nobody(site: Path, at: float, how: str) -> None:
    usual = imported(site)
    path = the_file(site)
    data = bytearray(path.read_bytes())
    place = min(int(at * len(data)), len(data) - 1)
    if how == "flipped":
        data[place] ^= 0x55
        path.write_bytes(data)
    else:
        path.write_bytes(data[:place])
    found = imported(site)
    assert found["says"] == usual["says"]
    assert found["layer"] == usual["layer"]


def test_one_that_others_can_write_to_is_not_read(site: Path) -> None:
    """What lies there is run."""
    imported(site)
    the_file(site).chmod(0o666)
    assert imported(site)["read"] == []
    assert the_file(site).stat().st_mode & 0o777 == 0o600, "a new one took its place"


def test_it_lies_beside_the_shared_library_if_there_is_one(site: Path, tmp_path: Path) -> None:
    settings = Levers(compile_cache=str(tmp_path / "library")).settings
    assert settings["ETT_IMPORTS"] == str(tmp_path / "library" / f".imports-{os.geteuid()}")
    assert "ETT_IMPORTS" not in Levers(compile_cache="s3://bucket/library").settings
    assert "ETT_IMPORTS" not in Levers(compile_cache="library", bytecode=False).settings
    imported(site, ETT_IMPORTS=settings["ETT_IMPORTS"])
    assert len([*Path(settings["ETT_IMPORTS"]).iterdir()]) == 1
    assert not (tmp_path / "kept").exists()


def test_it_can_be_turned_off(site: Path) -> None:
    src = "from torchett.launch.imports import bundle as b; b.board(); assert b._finder() is None"
    env = {**os.environ, "ETT_BYTECODE": "0"}
    subprocess.run([sys.executable, "-c", src], env=env, check=True)


def test_old_files_and_parts_are_cleared_away(tmp_path: Path) -> None:
    now = time.time()
    ages = {f"imports-{n}.ett": n for n in range(6)}
    ages |= {".imports-1.ett.x.part": 9000, ".imports-2.ett.y.part": 5, "notes": 9000}
    for name, age_s in ages.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (now - age_s, now - age_s))
    bundle._tidy(str(tmp_path))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*(f"imports-{n}.ett" for n in range(4)), ".imports-2.ett.y.part", "notes"}


def test_texts_are_not_kept_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    monkeypatch.setattr(bundle, "_MOST_TEXTS", 5)
    monkeypatch.setattr(bundle, "_texts", {})
    monkeypatch.setattr(dataclasses, "exec", exec, raising=False)
    bundle._keep_texts()
    for n in range(4):
        made = dataclasses.make_dataclass("Made", [f"field_{n}"])
        assert dataclasses.asdict(made(n)) == {f"field_{n}": n}
    assert len(bundle._texts) == 5


def test_another_version_has_another_bundle(site: Path) -> None:
    """Its sources may have the same sizes and, in some images, the same times."""
    (site / "torch-2.11.0.dist-info").mkdir()
    imported(site)
    (site / "torch-2.11.0.dist-info").rename(site / "torch-2.13.0.dist-info")
    assert imported(site)["bundle"] is False
    assert len([*(site.parent / "kept").glob("imports-*.ett")]) == 2
