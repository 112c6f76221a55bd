"""The upload process, begun by a trainer: `python -m` this module, with the number of a socket.

It ends when its trainer does: a thread sees the end of the socket. What it had in hand is lost;
the keeper still has it in memory.
"""

import datetime
import mmap
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torchett.levers.checkpoint.stored.storage import bytes_passed
from torchett.levers.checkpoint.upload.uploaders import receive, send
from torchett.record.priority import lower_priority

_TELL_S = 1.0
# A scheduler that signals every process means the trainer, which may want to save.
_OF_THE_TRAINER = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(descriptor: int) -> None:
    """Serve the trainer at the other end of the socket."""
    for number in _OF_THE_TRAINER:
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=descriptor)
    lower_priority(10)
    settings, _ = receive(control)
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    group = _Group(settings)
    threading.Thread(target=_hear, args=(control, jobs, group), daemon=True).start()
    _serve(control, group, jobs)


def _hear(control: socket.socket, jobs: "queue.SimpleQueue[Any]", group: "_Group") -> None:
    while True:
        try:
            job = receive(control)
            group.newest = max(group.newest, job[0].generation)
            jobs.put(job)
        except (EOFError, OSError):
            os._exit(0)


def _serve(control: socket.socket, group: "_Group", jobs: "queue.SimpleQueue[Any]") -> None:
    import torch

    from torchett.levers.checkpoint.upload.flush import Flusher
    from torchett.levers.checkpoint.upload.upload import upload

    torch.set_num_threads(1)
    torch.serialization.set_crc32_options(False)  # we sum all bytes ourselves
    import torch.distributed.checkpoint

    talking = threading.Lock()

    def say(message: Any) -> None:
        with talking, suppress(OSError):  # the trainer may be dead
            send(control, message)

    flusher = Flusher(
        lambda step, error: say(("flushed", step, error)),
        group.count,
        lambda: say(("all flushed", 0, None)),
    )
    busy = threading.Event()
    threading.Thread(target=_tell_progress, args=(say, busy), daemon=True).start()
    group.begin()
    say(("ready", 0, None))
    memory: mmap.mmap | None = None
    plan: Any = None
    tensors: list[Any] = []
    while True:
        job, fds = jobs.get()
        busy.set()
        if fds:
            tensors = []
            memory = mmap.mmap(fds[0], 0)
            os.close(fds[0])
        if job.plan is not None:
            assert memory is not None
            plan, tensors = job.plan, [slot.view(memory) for slot in job.slots]
        job.plan = plan
        flush = job.target.remote is not None

        def durable(name: str) -> None:
            say(("durable", name, None))

        outcome = group.unusable_group(job) or upload(
            job, tensors, group.group, durable, cpu_clock=time.process_time
        )
        if flush and outcome.name is not None:
            say(("flushing", 0, None))
            flusher.flush(replace(job, plan=None, blobs=[]), outcome.name)
        busy.clear()
        say(outcome)


def _tell_progress(say: Callable[[Any], None], busy: threading.Event) -> None:
    """Say how many bytes have been written, while something is in hand and they become more."""
    told = 0
    while True:
        time.sleep(_TELL_S)
        if not busy.is_set() or (passed := bytes_passed()) == told:
            continue
        told = passed
        say(("passed", told, None))


class _Group:
    """The gloo group of the ranks' upload processes, formed anew for each generation.

    Nothing in it has a deadline: ranks may differ by any time, and their trainers watch whether
    uploads move. A process that waits for others leaves when its trainer names a newer generation.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._generation = -1
        self.newest = 0  # that the trainer has named
        self.group: Any = None
        self._counts: Any = None

    def count(self, key: str, add: int) -> int:
        """A counter that all ranks share, over a connection of its own."""
        import torch.distributed as dist

        if self._counts is None:
            host, port = self._settings["address"]
            self._counts = dist.TCPStore(host, port, is_master=False)
        return int(self._counts.add(key, add))

    def begin(self) -> None:
        """Join the first; a process that was begun anew waits for the next: this one has met."""
        if self._settings["first"]:
            self.join(0)

    def join(self, generation: int) -> str | None:
        """None, or why this rank's process is not in the group of that generation."""
        import torch.distributed as dist

        if self._settings["address"] is None or generation == self._generation:
            return None
        host, port = self._settings["address"]
        patience = datetime.timedelta(days=7)
        try:
            if dist.is_initialized():
                dist.destroy_process_group()
            store = dist.TCPStore(host, port, is_master=False, timeout=patience)
            here, pause_s = f"uploads/{generation}/here", 0.01
            store.add(here, 1)
            while int(store.add(here, 0)) < self._settings["world_size"]:
                if self.newest > generation:
                    return f"generation {self.newest} has begun"
                time.sleep(pause_s)
                pause_s = min(1.0, 1.2 * pause_s)
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore(f"uploads/{generation}", store),
                rank=self._settings["rank"],
                world_size=self._settings["world_size"],
                timeout=patience,
            )
            self.group = dist.group.WORLD
            self._generation = generation
        except Exception as error:
            self._generation = -1
            return f"{type(error).__name__}: {error}"[:300]
        return None

    def unusable_group(self, job: Any) -> Any:
        """An outcome if the group of the job's generation cannot be formed."""
        from torchett.levers.checkpoint.upload.upload import UploadResult

        said = self.join(job.generation)
        if said is None:
            return None
        return UploadResult(
            step=job.step, error=f"upload group: {said}", group_is_sound=False, can_retry=True
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))
