"""What `benchmarks/publish.py` does in processes of their own: train, work, serve, kill, limit."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DLRM = ROOT / "examples" / "dlrm"
RECIPES = DLRM / "publishing.py"


@dataclass(frozen=True)
class Place:
    """A folder with its own runs, spool, registry and compiler cache."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        return os.environ | {
            "ETT_RUNS": str(self.folder / "runs"),
            "ETT_SPOOL": self.spool,
            "ETT_REGISTRY": self.registry,
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
            "PYTHONPATH": f"{ROOT / 'examples'}:{ROOT / 'src'}",
        }

    @property
    def spool(self) -> str:
        return str(self.folder / "spool")

    @property
    def registry(self) -> str:
        return str(self.folder / "registry")

    def ett(self, *words: str, check: bool = True, prefix: tuple[str, ...] = ()) -> Any:
        """`ett …`, ended, with what it said."""
        done = subprocess.run(
            [*prefix, sys.executable, "-m", "torchett.cli.main", *words],
            env=self.env, cwd=self.folder, capture_output=True, text=True,
        )  # fmt: skip
        if check and done.returncode:
            raise SystemExit(f"ett {' '.join(words)}:\n{done.stdout}{done.stderr}")
        return done

    def report(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ett("report", job, "--json").stdout)
        return found

    def versions(self, name: str) -> list[dict[str, Any]]:
        """The versions of a model with all that they say, the oldest first."""
        listed = json.loads(self.ett("publish", "ls", "--json").stdout)["models"]
        numbers = [v["version"] for m in listed if m["model"] == name for v in m["versions"]]
        shown = [self.ett("publish", "show", f"{name}@{n}", "--json").stdout for n in numbers]
        return [json.loads(text) for text in shown]

    def drop(
        self, anchor: str, recipe: str, name: str, *, spool: str = "", registry: str = ""
    ) -> str:
        """The id of a new job."""
        from torchett.levers.publish.recipe.anchor import find_anchor
        from torchett.levers.publish.spool.job import PublishJob
        from torchett.levers.publish.spool.spool import Spool

        found = find_anchor(anchor)
        job = PublishJob(
            name=name,
            recipe=recipe,
            anchor=found.path,
            anchor_sha256=found.sha256,
            registry=registry or self.registry,
            dropped_s=time.time(),
        )
        Spool(spool or self.spool).add(job)
        return job.id


def train(
    place: Place, job: str, how: str, *, preset: str, steps: int, seed: int, ranks: int = 1
) -> None:
    """A DLRM trained and published in this way; TorchRec shards its tables over several ranks."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    script = [
        sys.executable, *(torchrun if ranks > 1 else []), str(DLRM / "train_ett.py"),
        "--preset", preset, "--steps", str(steps),
        "--no-compile", "--seed", str(seed), "--publish", how, "--num-workers", "0",
        "--checkpoint-dir", str(place.folder / f"checkpoints-{job}"),
        *(["--sharded"] if ranks > 1 else []),
    ]  # fmt: skip
    place.ett("run", "--job", job, "--", *script)


def save_anchors(folder: Path, seeds: range, preset: str = "tiny") -> list[str]:
    """Checkpoints of DLRMs that differ by their seed."""
    sys.path.insert(0, str(ROOT / "examples"))
    import torch
    from dlrm import model as models

    import torchett as ett

    checkpoints = ett.Checkpointer(folder, every=10**9, keep=10**6, upload="thread")
    for seed in seeds:
        torch.manual_seed(seed)
        checkpoints.save(seed, {"model": models.DLRM(models.PRESETS[preset])}, wait=True)
    checkpoints.close(final=False)
    return [str(folder / f"step-{seed:08d}") for seed in seeds]


def every_batch(snapshot: str, most: int, each: int) -> dict[str, Any]:
    """The greatest difference from the trained model over batches of 1 to `most`."""
    sys.path.insert(0, str(ROOT / "examples"))
    import torch
    from dlrm import model as models
    from dlrm.publishing import inputs_of

    from torchett.levers.publish.serving.snapshot import Snapshot, SnapshotError, read_tensors

    model, trained = Snapshot(snapshot), models.DLRM(models.PRESETS["tiny"]).eval()
    trained.load_state_dict(read_tensors(Path(snapshot) / "weights.safetensors"))
    whole = inputs_of("tiny", most)
    off, count = 0.0, 0
    with torch.no_grad():
        for batch in sorted({*range(1, most + 1, each), 1, 2, most}):
            inputs = (
                whole[0][:batch],
                whole[1][:, : 4 * batch],
                whole[2][:, :batch].clamp(max=4 * batch),
            )
            off = max(off, float((model(*inputs) - trained(*inputs)).abs().max()))
            count += 1
    refused = []
    for size in (0, most + 1):
        dense = torch.zeros(size, whole[0].shape[1])
        ids, offsets = whole[1], torch.zeros(whole[2].shape[0], size, dtype=torch.long)
        try:
            model(dense, ids, offsets)
        except SnapshotError as error:
            refused.append(str(error))
    try:
        model(whole[0].double(), *whole[1:])
    except SnapshotError as error:
        refused.append(str(error))
    return {"batches": count, "max_error": off, "refused": refused}


def cold_load(snapshot: Path) -> dict[str, float]:
    """Seconds of a load in a fresh process: no Inductor cache, and the files not in memory."""
    for path in snapshot.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    empty = snapshot.parent / "empty"
    shutil.rmtree(empty, ignore_errors=True)
    empty.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(empty), "TORCHINDUCTOR_CACHE_DIR": str(empty)}
    done = subprocess.run(
        [sys.executable, "-I", str(snapshot / "load.py")],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found


def worker(place: Place, spool: str, *, poll: float = 0.05) -> subprocess.Popen[bytes]:
    """A worker that leaves when nothing is left to do."""
    command = [sys.executable, "-m", "torchett.cli.main", "publish", "work", spool, "--drain"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        [*command, "--poll", str(poll)], env=place.env | {"OMP_NUM_THREADS": "1"},
        cwd=place.folder, stdout=quiet, stderr=quiet, start_new_session=True,
    )  # fmt: skip


def forked_worker(spool: str) -> int:
    """The pid of a worker that begins at once: it needs not import torch first."""
    from torchett.levers.publish.spool.spool import Spool
    from torchett.levers.publish.spool.worker import Habits, work

    pid = os.fork()
    if pid == 0:
        try:
            work(Spool(spool), Habits(poll_s=0.02), drain=True, say=lambda line: None)
        finally:
            os._exit(0)
    return pid


def kill_workers(place: Place, anchors: list[str], recipe: str, kills: int) -> dict[str, Any]:
    """Two workers on one job, killed at random moments and started again, until enough were.

    After each kill the registry is looked at: every version whole, one a key, and the alias on one.
    Kills come within the time that an unbroken job takes, which the first anchor tells.
    """
    import torch

    from torchett.levers.publish.registry.registry import Registry

    torch.set_num_threads(1)
    for module in ("recipe.steps", "spool.publish_job"):
        __import__(f"torchett.levers.publish.{module}")
    drawn = random.Random(0)
    found = {"kills": 0, "jobs": 0, "half": 0, "twice": 0, "bad_alias": 0, "unfinished": 0}
    model = Registry(place.registry).model("killed")
    longest = 1.0
    for number, anchor in enumerate(anchors):
        spool = str(place.folder / f"spool-{number}")
        place.drop(anchor, recipe, "killed", spool=spool)
        found["jobs"] += 1
        began, deaths = time.monotonic(), 0
        workers = {forked_worker(spool), forked_worker(spool)}
        while workers:
            if number and deaths < 8 and found["kills"] < kills:
                victim = drawn.choice(sorted(workers))
                if not _ends_by_itself(victim, drawn.uniform(0, longest)):
                    os.kill(victim, signal.SIGKILL)
                    os.waitpid(victim, 0)
                    found["kills"] += 1
                    deaths += 1
                    workers.add(forked_worker(spool))
                workers.remove(victim)
            else:
                os.waitpid(workers.pop(), 0)
            _look(model, found)
        if not number:
            longest = min(time.monotonic() - began, 3.0)
        found["unfinished"] = found["jobs"] - len(list(model.versions()))
        if found["kills"] >= kills:
            break
    return found


def _ends_by_itself(pid: int, within_s: float) -> bool:
    """Whether a child exits before so many seconds have passed."""
    until = time.monotonic() + within_s
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() >= until:
            return False
        time.sleep(0.005)
    return True


def _look(model: Any, found: dict[str, int]) -> None:
    versions = list(model.versions())
    keys = [version.key for version in versions]
    found["twice"] += len(keys) - len(set(keys))
    found["half"] += sum(bool(model.problems(version)) for version in versions)
    flip = model.aliases.current("live")
    if flip is not None:
        found["bad_alias"] += flip.version not in {version.version for version in versions}


@contextmanager
def memory_limit(most: int) -> Iterator[tuple[str, ...]]:
    """A prefix for commands that may hold so many bytes, by a cgroup (v1) of its own."""
    group = Path("/sys/fs/cgroup/memory") / f"ett-publish-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(most))
        yield ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.2)
        group.rmdir()
