"""A job becomes one version, whatever happens to workers, recipes, disks and clocks."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import torchett as ett
from torchett.cli.main import main
from torchett.levers.publish.recipe.anchor import find_anchor
from torchett.levers.publish.recipe.find_recipe import find_recipe
from torchett.levers.publish.registry.registry import Registry
from torchett.levers.publish.spool import claims
from torchett.levers.publish.spool.job import PublishJob
from torchett.levers.publish.spool.spool import Spool
from torchett.levers.publish.spool.worker import Habits, Tally, try_job, work
from torchett.record.clock import process_start_ticks

RECIPES = str(Path(__file__).with_name("small_models.py"))


def save(where: Path, step: int = 0, model: nn.Module | None = None) -> str:
    """A checkpoint of one rank."""
    torch.manual_seed(step)
    checkpoints = ett.Checkpointer(where, every=1000, upload="thread")
    checkpoints.save(step, {"model": model or nn.Linear(8, 2)}, wait=True)
    checkpoints.close(final=False)
    return str(where / f"step-{step:08d}")


@pytest.fixture
def job(tmp_path: Path) -> PublishJob:
    anchor = find_anchor(save(tmp_path / "checkpoints"))
    return PublishJob(
        name="line",
        recipe=f"{RECIPES}:line",
        anchor=anchor.path,
        anchor_sha256=anchor.sha256,
        registry=str(tmp_path / "registry"),
        dropped_s=time.time(),
    )


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path / "spool"))


def drain(spool: Spool, **habits: Any) -> list[str]:
    """What a worker says until there is nothing left to do."""
    said: list[str] = []
    work(spool, replace(Habits(poll_s=0.05), **habits), drain=True, say=said.append)
    return said


def labels(job: PublishJob) -> list[str]:
    return [version.label for version in Registry(job.registry).model(job.name).versions()]


def live(job: PublishJob) -> int | None:
    flip = Registry(job.registry).model(job.name).aliases.current("live")
    return None if flip is None else flip.version


def test_a_job_dropped_twice_is_published_once(spool: Spool, job: PublishJob) -> None:
    assert spool.add(job)
    assert not spool.add(replace(job, dropped_s=time.time() + 5))
    assert "published as line@1, live now" in drain(spool)[0]
    assert (labels(job), live(job)) == (["line@1"], 1)
    assert spool.standing(job.id).told["version"] == "line@1"
    record = spool.store.read(f"records/{job.id}.jsonl", limit=10**6).decode().splitlines()
    assert json.loads(record[0])["version"] == "line@1"
    assert "x-load" in {json.loads(line).get("account") for line in record}


def test_a_job_that_is_done_is_published_again_where_its_recipe_has_changed(
    spool: Spool, job: PublishJob, tmp_path: Path
) -> None:
    own = tmp_path / "recipe.py"
    own.write_text(Path(RECIPES).read_text())
    mine = replace(job, recipe=f"{own}:line")
    spool.add(mine)
    drain(spool)
    words = ("publish", "add", spool.url, "--recipe", mine.recipe, "--anchor", mine.anchor)
    words += ("--name", mine.name, "--registry", mine.registry)
    said = CliRunner().invoke(main, words).output
    assert "was there already and is line@1; if the recipe or torch has changed since" in said
    assert f"ett publish retry {spool.url} {mine.id}" in said
    spool.retry(mine.id)
    assert "was published already as line@1" in drain(spool)[0]
    own.write_text(own.read_text().replace("torch.ones(batch, 8)", "torch.zeros(batch, 8)"))
    spool.retry(mine.id)
    assert "published as line@2, live now" in drain(spool)[0]


def test_two_spools_with_one_anchor_make_one_version(
    spool: Spool, job: PublishJob, tmp_path: Path
) -> None:
    other = Spool(str(tmp_path / "other"))
    for one in (spool, other):
        one.add(job)
    drain(spool)
    assert "was published already as line@1" in drain(other)[0]
    assert labels(job) == ["line@1"]


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ("raises", "raised OSError: no such host: features.internal"),
        ("unbuilt", "build raised ZeroDivisionError"),
        ("other_shape", r"example\(1\) does not fit its inputs: input 'x': expected 8"),
        ("other_model", "size mismatch"),
        ("nothing", "has no 'nothing'"),
    ],
)
def test_a_recipe_that_is_wrong_is_tried_again_and_parked_with_its_reason(
    spool: Spool, job: PublishJob, recipe: str, sentence: str
) -> None:
    bad = replace(job, recipe=f"{RECIPES}:{recipe}")
    spool.add(bad)
    said = drain(spool, tries=2)
    assert len(said) == 2
    assert "tried again, 1 left" in said[0]
    assert all("\n" not in line for line in said)
    standing = spool.standing(bad.id)
    assert (standing.state, standing.failures) == ("parked", 2)
    assert re.search(sentence, standing.told["reason"])
    assert (labels(job), live(job)) == ([], None)
    spool.retry(bad.id)
    assert spool.open_jobs() == [bad.id]


def test_a_corrupt_anchor_is_not_published(spool: Spool, job: PublishJob) -> None:
    data = next(Path(job.anchor).glob("*.distcp"))
    found = bytearray(data.read_bytes())
    found[len(found) // 2] ^= 1
    data.write_bytes(found)
    spool.add(job)
    said = drain(spool, tries=1)
    assert "CRC" in said[0]
    assert (labels(job), live(job)) == ([], None)


def test_another_anchor_in_its_place_is_not_published(
    spool: Spool, job: PublishJob, tmp_path: Path
) -> None:
    spool.add(replace(job, anchor_sha256="0" * 64))
    assert "not the checkpoint that the job was dropped for" in drain(spool, tries=1)[0]
    assert labels(job) == []


def test_a_full_disk_leaves_no_version(
    spool: Spool, job: PublishJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry's disk takes no more: first in the middle of a file, then it has room."""
    from torchett.store import FolderStore

    whole = FolderStore.write_file

    def full(self: FolderStore, name: str, path: Path) -> None:
        raise OSError(28, "No space left on device", name)

    monkeypatch.setattr(FolderStore, "write_file", full)
    spool.add(job)
    assert "No space left on device" in drain(spool, tries=1)[0]
    assert (labels(job), live(job)) == ([], None)
    monkeypatch.setattr(FolderStore, "write_file", whole)
    spool.retry(job.id)
    drain(spool)
    assert (labels(job), live(job)) == (["line@1"], 1)


def test_a_job_that_ends_its_workers_is_parked(spool: Spool, job: PublishJob) -> None:
    bad = replace(job, recipe=f"{RECIPES}:exits")
    spool.add(bad)
    command = f"""
from torchett.levers.publish.spool.spool import Spool
from torchett.levers.publish.spool.worker import *
try_job(Spool({spool.url!r}), {bad.id!r}, Habits(deaths=2), Tally(), print)
"""
    codes = [
        subprocess.run([sys.executable, "-c", command], capture_output=True).returncode
        for _ in range(3)
    ]
    assert codes == [9, 9, 0]
    assert "2 workers ended" in spool.standing(bad.id).told["reason"]


@pytest.fixture
def holder(spool: Spool, job: PublishJob) -> Any:
    """A process that has claimed the job and holds it until it is ended."""
    spool.add(job)
    command = f"""
import sys, time
from torchett.levers.publish.spool.spool import Spool
claim = Spool({spool.url!r}).take({job.id!r})
with claim.beating():
    print("claimed", flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "claimed\n"
    yield process
    process.kill()
    process.wait()


def test_a_job_is_free_as_soon_as_its_worker_is_killed(
    spool: Spool, job: PublishJob, holder: Any
) -> None:
    tally = Tally()
    assert not try_job(spool, job.id, Habits(), tally, print)
    holder.kill()
    holder.wait()
    assert try_job(spool, job.id, Habits(), tally, print)
    assert labels(job) == ["line@1"]


def test_a_worker_that_stands_still_loses_its_job_and_stops(
    spool: Spool, job: PublishJob, holder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process lives, its beats do not: another takes over when the lease is up."""
    os.kill(holder.pid, signal.SIGSTOP)
    impatient = Spool(spool.url, lease_s=0.3)
    assert impatient.take(job.id) is None
    claim, until = None, time.monotonic() + 10
    while claim is None and time.monotonic() < until:  # a beat may have been under way
        time.sleep(0.4)
        claim = impatient.take(job.id)
    assert claim is not None
    assert claim.number == 2
    claim.still_ours()
    with pytest.raises(claims.LostClaim, match="another worker took over"):
        replace(claim, number=1).still_ours()


def test_no_clock_decides_who_has_a_job(
    spool: Spool, job: PublishJob, holder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for jump in (-(10.0**6), 10.0**6):
        monkeypatch.setattr(time, "time", lambda jump=jump: 1.8e9 + jump)
        assert spool.take(job.id) is None


def test_a_clock_that_jumps_does_not_hold_up_a_failed_job(
    spool: Spool, job: PublishJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.add(job)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 10.0**6)
    spool.fail(job.id, "lost the network", tries=3)
    monkeypatch.setattr(time, "time", real)
    assert spool.take(job.id) is not None


def test_what_was_rolled_back_is_not_made_live_again_by_a_retry(
    spool: Spool, job: PublishJob, tmp_path: Path
) -> None:
    """The worker was killed after it moved the alias and before it said done."""
    spool.add(job)
    drain(spool)
    second = find_anchor(save(tmp_path / "checkpoints", step=5))
    later = replace(job, anchor=second.path, anchor_sha256=second.sha256)
    spool.add(later)
    drain(spool)
    model = Registry(job.registry).model("line")
    assert live(job) == 2
    model.rollback("live", now_s=time.time())
    spool.store.delete(f"done/{later.id}.json")
    drain(spool)
    assert (labels(job), live(job)) == (["line@1", "line@2"], 1)


def test_an_earlier_step_that_is_published_late_does_not_go_live(
    spool: Spool, job: PublishJob, tmp_path: Path
) -> None:
    late = find_anchor(save(tmp_path / "checkpoints", step=5))
    training = {"job": "train"}
    newer = replace(job, anchor=late.path, anchor_sha256=late.sha256, training=training)
    for one in (newer, replace(job, training=training)):
        spool.add(one)
        drain(spool)
    assert (labels(job), live(job)) == (["line@1", "line@2"], 1)


def test_changing_the_recipe_makes_another_version(
    spool: Spool, job: PublishJob, tmp_path: Path
) -> None:
    """Its source and that of what it imports count; a comment elsewhere does not."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "parts.py").write_text("WIDTH = 8\n")
    (own / "rest.py").write_text("OTHER = 1\n")
    source = Path(RECIPES).read_text() + "\nimport parts\n"
    (own / "recipe.py").write_text(source)
    mine = replace(job, recipe=f"{own}/recipe.py:line", path=(str(own),))
    command = f"""
import sys
from torchett.levers.publish.recipe.find_recipe import find_recipe
print(find_recipe({mine.recipe!r}, {mine.path!r}).hash)
"""

    def hashed() -> str:
        done = subprocess.run(
            [sys.executable, "-B", "-c", command], capture_output=True, text=True, check=True
        )
        return done.stdout

    first = hashed()
    (own / "rest.py").write_text("OTHER = 2\n")
    assert hashed() == first
    (own / "parts.py").write_text("WIDTH = 9\n")
    assert hashed() != first


def test_a_worker_that_lives_on_uses_the_source_as_it_is_now(tmp_path: Path) -> None:
    (tmp_path / "widths.py").write_text("MOST = 16\n")
    (tmp_path / "wide.py").write_text(
        "from small_models import line\nimport widths\n"
        "def recipe():\n    return line(dims={'batch': (1, widths.MOST)})\n"
    )
    path = [str(tmp_path), str(Path(RECIPES).parent)]
    first = find_recipe(f"{tmp_path}/wide.py:recipe", path)
    (tmp_path / "widths.py").write_text("MOST = 16 * 2\n")
    second = find_recipe(f"{tmp_path}/wide.py:recipe", path)
    assert (first.recipe.dims["batch"][1], second.recipe.dims["batch"][1]) == (16, 32)
    assert first.hash != second.hash


def test_what_a_killed_worker_left_is_swept(spool: Spool, job: PublishJob, tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead, alive = f"ett-publish-{ended.pid}-1-x", f"ett-publish-{os.getpid()}-{{}}-x"
    alive = alive.format(process_start_ticks(os.getpid()))
    for name in (dead, alive):
        (tmp_path / "scratch" / name).mkdir(parents=True)
    spool.add(job)
    drain(spool, scratch=tmp_path / "scratch")
    assert os.listdir(tmp_path / "scratch") == [alive]
