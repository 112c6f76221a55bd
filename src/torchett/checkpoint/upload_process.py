"""The upload process: python -m torchett.checkpoint.upload_process FD, begun by a trainer.

It ends when its trainer does: a thread hears the end of the socket, and leaves once what is nearly
done is done.
"""

import datetime
import mmap
import os
import queue
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import Any

from torchett.checkpoint.orphans import Hand
from torchett.checkpoint.uploaders import receive, send

# A scheduler that signals every process means the trainer, which may want to save.
_OF_THE_TRAINER = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(descriptor: int) -> None:
    """Serve the trainer at the other end of the socket."""
    for number in _OF_THE_TRAINER:
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=descriptor)
    try:
        os.nice(10)
    except OSError:
        pass
    settings, _ = receive(control)
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    hand = Hand()
    threading.Thread(target=_hear, args=(control, jobs, hand), daemon=True).start()
    _serve(control, settings, jobs, hand)


def _hear(control: socket.socket, jobs: "queue.SimpleQueue[Any]", hand: Hand) -> None:
    while True:
        try:
            jobs.put(receive(control))
        except (EOFError, OSError):
            hand.finish()
            os._exit(0)


def _serve(
    control: socket.socket, settings: dict[str, Any], jobs: "queue.SimpleQueue[Any]", hand: Hand
) -> None:
    import torch

    from torchett.checkpoint.upload import Flusher, upload

    torch.set_num_threads(1)
    torch.serialization.set_crc32_options(False)  # we sum all bytes ourselves
    import torch.distributed.checkpoint

    talking = threading.Lock()

    def say(message: Any) -> None:
        with talking, suppress(OSError):  # the trainer may be dead
            send(control, message)

    flusher = Flusher(lambda step, error: say(("flushed", step, error)))
    group = _Group(settings)
    if settings["first"]:  # begun anew, it waits for the next generation: this one has met
        group.join(0)
    say(("ready", 0, None))
    memory: mmap.mmap | None = None
    plan: Any = None
    tensors: list[Any] = []
    while True:
        job, fds = jobs.get()
        hand.take(job.target.where, job.step)
        if fds:
            tensors = []
            memory = mmap.mmap(fds[0], 0)
            os.close(fds[0])
        if job.plan is not None:
            assert memory is not None
            plan, tensors = job.plan, [slot.view(memory) for slot in job.slots]
        job.plan = plan
        flush = job.target.remote is not None

        def durable(name: str, flush: bool = flush) -> None:
            say(("durable", name, flush))

        outcome = group.trouble(job) or upload(job, tensors, group.group, durable)
        if flush and outcome.name is not None:
            flusher.flush(job.target, outcome.name)
        hand.is_done(outcome.seconds if outcome.error is None else None)
        say(outcome)


class _Group:
    """The gloo group of the ranks' upload processes, formed anew for each generation."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._generation = -1
        self.group: Any = None

    def join(self, generation: int) -> str | None:
        """None, or why this rank's process is not in the group of that generation."""
        import torch.distributed as dist

        if self._settings["address"] is None or generation == self._generation:
            return None
        host, port = self._settings["address"]
        patience = datetime.timedelta(seconds=120)
        try:
            if dist.is_initialized():
                dist.destroy_process_group()
            store = dist.TCPStore(host, port, is_master=False, timeout=patience)
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

    def trouble(self, job: Any) -> Any:
        """An outcome if the group of the job's generation cannot be formed."""
        from torchett.checkpoint.upload import Outcome

        said = self.join(job.generation)
        if said is None:
            return None
        return Outcome(step=job.step, error=f"upload group: {said}", group_is_sound=False)


if __name__ == "__main__":
    main(int(sys.argv[1]))
