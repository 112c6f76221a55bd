"""torch's hash of its sources: the one it would have made, or its own."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchett.launch.imports import hashes

torch = pytest.importorskip("torch")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch whose sources can be changed; what is known of it is kept."""
    root = tmp_path / "torch"
    for name in ("__init__.py", "nn/layers.py", "_inductor/script.ld", "lib/libtorch.so"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    from torch._inductor import codecache

    monkeypatch.setattr(codecache, "_TORCH_PATH", str(root))
    monkeypatch.setattr(codecache, "torch_key", lambda: b"hashed")
    monkeypatch.setenv("ETT_BYTECODE", str(tmp_path / "kept"))
    monkeypatch.delenv("ETT_IMPORTS", raising=False)
    hashes.remember()
    return root


def recalled(root: Path) -> bytes | None:
    """What a process that imports torch is told."""
    told: list[bytes] = []
    codecache: Any = SimpleNamespace(_TORCH_PATH=str(root), torch_key=SimpleNamespace())
    codecache.torch_key.set = told.append
    hashes.recall(codecache)
    return told[0] if told else None


def test_the_hash_is_recalled_while_the_sources_are_the_same(sources: Path) -> None:
    assert recalled(sources) == b"hashed"
    (sources / "lib" / "libtorch.so").write_text("what torch does not hash")
    (sources / "__pycache__").mkdir()
    (sources / "__pycache__" / "__init__.cpython-311.pyc").touch()
    assert recalled(sources) == b"hashed"


@pytest.mark.parametrize("change", ["longer", "older", "new", "gone", "renamed", "elsewhere"])
def test_torch_hashes_sources_that_have_changed(sources: Path, tmp_path: Path, change: str) -> None:
    path = sources / "nn" / "layers.py"
    if change == "longer":
        seen = path.stat()
        path.write_text("longer than it was")
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    elif change == "older":
        os.utime(path, (1, 1))
    elif change == "new":
        (sources / "nn" / "new.py").touch()
    elif change == "gone":
        path.unlink()
    elif change == "renamed":
        path.rename(path.with_name("other.py"))
    else:
        sources = sources.rename(tmp_path / "other")
    assert recalled(sources) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sources": 7}'])
def test_what_is_damaged_is_not_believed(sources: Path, tmp_path: Path, text: str) -> None:
    [path] = (tmp_path / "kept").iterdir()
    path.write_text(text)
    assert recalled(sources) is None
    hashes.remember()
    assert recalled(sources) == b"hashed"


def test_what_others_can_write_is_not_believed(sources: Path, tmp_path: Path) -> None:
    [path] = (tmp_path / "kept").iterdir()
    assert json.loads(path.read_text())["key"] == b"hashed".hex()
    path.chmod(0o666)
    assert recalled(sources) is None


def test_all_that_torch_reads_is_compared() -> None:
    """Whatever the hash of this torch is made of lies in what the stamp is made of."""
    from torch._inductor import codecache

    read: list[str] = []

    class Opened:
        def __init__(self, path: str, mode: str) -> None:
            read.append(path)

        def __enter__(self) -> Any:
            return SimpleNamespace(read=lambda: b"")

        def __exit__(self, *_: object) -> None:
            pass

    codecache.open = Opened  # type: ignore[attr-defined]
    codecache.torch_key.clear()
    try:
        codecache.torch_key()
    finally:
        del codecache.open  # type: ignore[attr-defined]
        codecache.torch_key.clear()
    assert len(read) > 1000
    stamped = {entry for entry, _ in hashes.stamped(codecache._TORCH_PATH)}
    assert set(read) <= stamped
