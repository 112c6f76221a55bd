"""A version of the registry as a snapshot folder on this host."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchett.levers.publish.errors import PublishError, RegistryError
from torchett.levers.publish.registry.registry import Registry
from torchett.levers.publish.registry.version import Version


def fetch(registry: Registry, version: Version, folder: Path) -> None:
    """Write a version's files to a new folder, each compared with its hash."""
    if folder.exists():
        raise RegistryError(f"{folder} exists: expected the name of a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        blobs = registry.model(version.name).blobs
        for name, blob in version.files.items():
            if Path(name).name != name:
                raise RegistryError(f"{version.label} has a file {name!r}: expected a plain name")
            blobs.fetch(blob, draft / name)
        draft.chmod(0o755)
        os.rename(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


@contextmanager
def fetched(registry: Registry, version: Version) -> Iterator[Path]:
    """The snapshot in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ett-serve-") as scratch:
        fetch(registry, version, Path(scratch) / "snapshot")
        yield Path(scratch) / "snapshot"


def check_alone(snapshot: Path) -> str:
    """What `load.py --check` printed in a fresh, isolated process that has torch, not torchett."""
    done = subprocess.run(
        [sys.executable, "-I", str(snapshot / "load.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        said = next((line for line in reversed(lines) if line.startswith("snapshot: ")), None)
        raise PublishError(
            said.removeprefix("snapshot: ")
            if said
            else f"load.py ended with status {done.returncode}: {lines[-1] if lines else 'no word'}"
        )
    return done.stdout.strip().splitlines()[-1]
