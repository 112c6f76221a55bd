"""A training process with a library: one download a node, nothing compiled twice, no failed job.

One cold compile fills a library; every other job here is served from it or refuses it.
"""

import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from archives import OTHER_KEY, forged, row

from torchett.levers.compile.cache.archive import entry, pack, unpack
from torchett.levers.compile.cache.library import Library
from torchett.levers.compile.cache.node import Node
from torchett.levers.compile.cache.session import Session
from torchett.levers.compile.cache.signing import key_for
from torchett.runs.reader import RunReader
from torchett.store import open_store

pytest.importorskip("torch")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TRAIN = """
import os, sys, torch
import torchett as ett

ett.init()
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
weight = torch.randn(8, 8, requires_grad=True)

@torch.compile(backend=os.environ.get("TEST_BACKEND", "inductor"))
def loss(x):
    return torch.sin(x).mul(weight).sum()

for batch in ett.steps([torch.ones(8, 8)] * 3):
    loss(batch).backward()
print("loss", loss(torch.ones(8, 8)).item(), flush=True)
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    torch.distributed.destroy_process_group()
"""
GXX = """#!/bin/sh
echo "$@" >> {log}
exec {real} "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A finished job: its exit code, output, the notes of its ranks, the calls of g++."""

    code: int
    said: str
    facts: list[dict[str, Any]]
    built: list[str]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fact for fact in self.facts if fact["event"] == event]


class Place:
    """A folder with a script, a library, and a g++ that logs its calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.library = folder / "library"
        (folder / "bin").mkdir(parents=True)
        (folder / "gpt").mkdir()
        (folder / "gpt/train.py").write_text(TRAIN)
        real = shutil.which("g++")
        if real is None:
            pytest.skip("no g++ here")
        (folder / "bin/g++").write_text(GXX.format(log=folder / "built", real=real))
        (folder / "bin/g++").chmod(0o755)

    def run(
        self,
        job: str,
        *command: str,
        library: Path | str | None = None,
        standby: str = "--no-standby",
        **env: str,
    ) -> Job:
        """Run the script on an empty inductor cache, with this library or the folder's."""
        (self.folder / "built").write_text("")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "TORCH"))}
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "torchett.cli.main", "run", "--job", job),
                *("--progress", "0", standby, "--compile-cache", str(library or self.library)),
                *("--", *command),
            ],
            env=kept
            | {
                "PATH": path,
                "OMP_NUM_THREADS": "1",
                "ETT_RUNS": str(self.folder / "runs"),
                "TORCHINDUCTOR_CACHE_DIR": str(self.folder / f"cache-{job}"),
            }
            | env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        found = RunReader(self.folder / "runs" / job).poll().facts("compile_cache")
        built = (self.folder / "built").read_text().splitlines()
        return Job(
            code=done.returncode,
            said=done.stdout + done.stderr,
            facts=[fact for _, _, fact in found],
            built=[line for line in built if " -o " in line and ".so" in line],
        )

    def ranks(self, count: int) -> tuple[str, ...]:
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
        return (*torchrun, "--nproc-per-node", str(count), str(self.folder / "gpt/train.py"))

    @property
    def alone(self) -> tuple[str, ...]:
        return (sys.executable, str(self.folder / "gpt/train.py"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A library after one cold job."""
    made = Place(tmp_path_factory.mktemp("place"))
    cold = made.run("cold", *made.alone)
    assert cold.code == 0, cold.said
    assert cold.built, "the cold job must have built something"
    assert [fact["match"] for fact in cold.of("load")] == ["none"]
    (settled,) = cold.of("settle")
    assert settled["misses"] == 1
    assert settled["published"]
    return made


@pytest.mark.parametrize(("count", "standby"), [(2, "--standby"), (4, "--no-standby")])
def test_ranks_download_once_and_compile_nothing(place: Place, count: int, standby: str) -> None:
    job = place.run(f"warm-{count}", *place.ranks(count), standby=standby)
    assert job.code == 0, job.said
    loads, settled = job.of("load"), job.of("settle")
    assert len(loads) == len(settled) == count
    assert {fact["match"] for fact in loads} == {"exact"}
    assert len({fact["loaded_by"] for fact in loads}) == 1, "one download a node"
    assert [(fact["hits"], fact["misses"], fact["bypasses"]) for fact in settled] == [
        (1, 0, 0)
    ] * count
    assert job.built == [], "g++ built something that the archive has"
    assert {fact.get("published") for fact in settled} == {None}
    assert len(list(place.library.glob("*/*.ett"))) == 1


def spoilt(place: Place, name: str, change: Any) -> Path:
    """A copy of the library with a changed archive, which is at least the nearest."""
    other = place.folder / f"library-{name}"
    shutil.copytree(place.library, other)
    (archive,) = other.glob("*/*.ett")
    change(archive)
    return other


class Payload:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def marker(archive: Path) -> Path:
    return archive.parents[1] / "pwned"


def forge(archive: Path) -> None:
    """An attacker without the key, but with write access to the store."""
    store = open_store(str(archive.parents[1]))
    found = unpack(archive.read_bytes(), key_for(store, {}))
    payload = pickle.dumps(Payload(marker(archive)))
    hostile = [entry(e.kind, e.name, payload) for e in found.entries if e.kind != "file"]
    archive.write_bytes(pack(found.environment, hostile, None))


def forge_with_a_key(archive: Path) -> None:
    """An attacker with another key."""
    forge(archive)
    made, stored = row("inductor", "a" * 52, pickle.dumps(Payload(marker(archive))))
    archive.write_bytes(forged([made], stored, OTHER_KEY))


def escape(archive: Path) -> None:
    """An attacker with our key, and a name outside the cache folder."""
    key = key_for(open_store(str(archive.parents[1])), {})
    words = dict(unpack(archive.read_bytes(), key).environment)
    made, stored = row("autotune", "../../pwned.best_config", b"hostile")
    archive.write_bytes(forged([made], stored, key, environment=words))


def bomb(archive: Path) -> None:
    """An attacker with our key, and an entry that unpacks to more than its declared size."""
    key = key_for(open_store(str(archive.parents[1])), {})
    words = dict(unpack(archive.read_bytes(), key).environment)
    made, stored = row("inductor", "a" * 52, b"\0" * (8 << 20), size=10)
    archive.write_bytes(forged([made], stored, key, environment=words))


def truncate(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:-100])


def corrupt(archive: Path) -> None:
    data = bytearray(archive.read_bytes())
    data[-50] ^= 255
    archive.write_bytes(bytes(data))


def make_stale(archive: Path) -> None:
    store = open_store(str(archive.parents[1]))
    key = key_for(store, {})
    found = unpack(archive.read_bytes(), key)
    old = dict(found.environment) | {"torch": "2.12.0 old"}
    archive.write_bytes(pack(old, found.entries, key))


def vanish(archive: Path) -> None:
    archive.unlink()


def test_a_job_continues_without_an_archive_it_refuses(place: Place) -> None:
    """backend=eager: there are compile events, but nothing expensive is compiled."""
    bad = spoilt(place, "unsigned", forge)
    (bad / ".key").unlink()
    bad.chmod(0o777)
    job = place.run("unsigned", *place.alone, library=bad, TEST_BACKEND="eager")
    assert job.code == 0, job.said
    assert "loss" in job.said
    (load,) = job.of("load")
    assert load["match"] == "none"
    assert "not signed: set ETT_CACHE_KEY" in load["reason"]
    assert job.said.count("compiling without") == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (forge, "not signed"),
        (forge_with_a_key, "signed with key"),
        (escape, "named '../../pwned.best_config': not a name torch gives"),
        (bomb, "is not the 10 bytes it says"),
        (truncate, "truncated"),
        (corrupt, "damaged"),
        (make_stale, "stale: made with torch '2.12.0 old'"),
        (vanish, "FileNotFoundError"),
    ],
)
def test_a_bad_archive_is_refused_before_a_byte_of_it_is_written(
    place: Place, change: Any, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    bad = spoilt(place, change.__name__, change)
    found = begin(bad)
    assert found["match"] == "none"
    assert reason in found["reason"]
    assert [path.name for path in tmp_path.iterdir()] == ["ett-cache"]
    assert not (bad / "pwned").exists(), "a pickle was loaded"


def test_a_store_that_cannot_be_reached_is_a_cold_compile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert "cannot be opened" in begin("nosuch://x")["reason"]
    (tmp_path / "file").touch()
    assert begin(tmp_path / "file")["match"] == "none"


def begin(library: Path | str) -> dict[str, Any]:
    """The notes of a process in which a compile begins."""
    from torchett.levers.compile.cache.session import Session
    from torchett.record import api

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "_recorder", None)  # other tests may have opened a record
        patch.setattr(api, "_early_notes", [])
        Session(str(library), {}, workload="gpt/train.py").before()
        ((_, fact),) = api._early_notes
    return fact


def test_the_library_can_be_listed_and_shown(place: Place) -> None:
    def ett(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "torchett.cli.main", "compile", "cache", *args]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ)

    library = str(place.library)
    (one,) = json.loads(ett("ls", library, "--json").stdout)["archives"]
    assert one["environment"]["workload"] == "gpt/train.py"
    shown = json.loads(ett("show", library, one["key"], "--json").stdout)
    assert {entry["kind"] for entry in shown["entries"]} >= {"inductor", "aot_autograd", "file"}
    assert ett("verify", library).returncode == 0
    file, other = place.folder / "pulled.ett", place.folder / "other-library"
    assert ett("pull", library, one["key"][:20], str(file)).returncode == 0
    key = str(place.library / ".key")
    assert ett("push", str(file), str(other), "--key-file", key).returncode == 0
    assert ett("verify", str(other)).returncode == 0
    assert Library(open_store(str(other)), key_for(open_store(str(other)), {})).heads()
    refused = ett("push", str(file), str(place.folder / "third"))
    assert refused.returncode == 2
    assert "signed with key" in refused.stderr
    both = str(place.folder / "both.ett")
    assert ett("merge", str(file), str(file), "-o", both, "--key-file", key).returncode == 0
    assert ett("verify", both, "--key-file", key).returncode == 0
    missing = ett("show", library, "nosuch")
    assert (missing.returncode, "expected one archive, found 0" in missing.stderr) == (2, True)
    truncate(file)
    assert ett("verify", str(file), "--key-file", key).returncode == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_rank_that_fails_waits_for_no_other(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """The others still train or wait for this rank, so they write no part."""
    monkeypatch.delattr(sys, "last_value", raising=False)
    if fails:
        monkeypatch.setattr(sys, "last_value", ConnectionError(), raising=False)
    session = Session("/nowhere", {})
    waits: list[float] = []
    monkeypatch.setattr(session, "_settle", lambda wait_s: waits.append(wait_s))
    session._at_exit()
    assert waits == [], "it has compiled nothing"
    session._last_compile = 1.0
    session._at_exit()
    assert waits == [0.0 if fails else 10.0]


@pytest.mark.parametrize("fails", [False, True])
def test_an_exit_waits_for_no_rank_that_the_thread_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.delattr(sys, "last_value", raising=False)
    if fails:
        monkeypatch.setattr(sys, "last_value", ConnectionError(), raising=False)
    session = Session("/nowhere", {})
    session._last_compile = 1.0
    node = Node(tmp_path, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"})
    monkeypatch.setattr(session, "_settle", lambda wait_s: node.collect(wait_s, session._leaving))
    thread = threading.Thread(target=session.settle, args=(60.0,))
    thread.start()
    while not session._settling.locked():
        time.sleep(0.001)
    began = time.monotonic()
    session._at_exit()
    thread.join()
    assert time.monotonic() - began < 5.0
