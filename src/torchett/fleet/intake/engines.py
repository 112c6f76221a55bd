"""Where run folders are read: in this process, in several, or as tasks on Ray. The rows are equal.

    sources ──► chunks ──► read (here │ a process │ a Ray task) ──► rows, or why there are none

A worker that is lost takes no result with it: its chunk is read again.
"""

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from torchett.fleet.rows import JobRows, JobSource, rows_of
from torchett.model.errors import EttError, InputError
from torchett.runs.reader import RunReader

Read = tuple[JobSource, JobRows | str]  # rows, or why they could not be made
Worker = tuple["Connection[Any, Any]", BaseProcess]
Engine = Callable[[Sequence[JobSource], int], Iterator[Read]]
_CHUNK = 16  # runs a task
_TIMES = 5  # that a chunk is read when workers are lost


def read(source: JobSource) -> Read:
    """The rows of one run folder, or one line that says why it has none."""
    try:
        reader = RunReader(source.folder, shipped=source.shipped)
        return source, rows_of(reader.poll(), source)
    except EttError as error:
        return source, str(error)
    except Exception as error:  # whatever one job's files hold, the others are read
        return source, f"{source.path}: not readable: {error!r}"


def read_all(sources: Sequence[JobSource]) -> list[Read]:
    """One task: these runs, one after the other."""
    return [read(source) for source in sources]


def local(sources: Sequence[JobSource], workers: int) -> Iterator[Read]:
    """Read in this process, or in `workers` of them.

    Each worker has a pipe of its own. In a pool all of them share one, and a worker that is killed
    while it holds the lock of that pipe blocks the others for ever.
    """
    if workers <= 1 or len(sources) <= _CHUNK:
        yield from map(read, sources)
        return
    waiting = deque((chunk, 0) for chunk in _chunks(sources))
    idle: list[Worker] = []
    running: dict[Any, tuple[Worker, Sequence[JobSource], int]] = {}  # by the worker's pipe
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                chunk, lost = waiting.popleft()
                if lost == _TIMES:
                    yield from read_all(chunk)
                    continue
                worker = idle.pop() if idle else _start_worker()
                with contextlib.suppress(OSError):  # it was killed meanwhile: seen below
                    worker[0].send(chunk)
                running[worker[0]] = worker, chunk, lost
            for pipe in wait(list(running)):
                worker, chunk, lost = running.pop(pipe)
                try:
                    found = worker[0].recv()
                except (EOFError, OSError):  # it was killed
                    worker[0].close()
                    waiting.append((chunk, lost + 1))
                    continue
                idle.append(worker)
                yield from found
    finally:
        for worker in [*idle, *(busy for busy, _, _ in running.values())]:
            worker[0].close()
            worker[1].kill()
            worker[1].join()


def _start_worker() -> Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # so that the end of the worker is the end of the pipe
    return ours, process


def _work(pipe: "Connection[Any, Any]") -> None:
    """A worker: reads the chunks that come through the pipe, until it is closed."""
    with contextlib.suppress(EOFError, OSError):  # closed, or the parent is gone
        while True:
            pipe.send(read_all(pipe.recv()))


def on_ray(sources: Sequence[JobSource], workers: int) -> Iterator[Read]:
    """Read by tasks on Ray: the cluster of $RAY_ADDRESS, else one of `workers` processes here."""
    try:
        import ray
    except ImportError:
        raise InputError(
            "--engine ray: ray is not installed: pip install 'torchett[ray]'"
        ) from None
    began = not ray.is_initialized()
    if began:
        ray.init(**_ray_settings(os.environ, workers))
    try:
        yield from _ray_tasks(ray, sources)
    finally:
        if began:
            ray.shutdown()


def _ray_settings(env: Mapping[str, str], workers: int) -> dict[str, Any]:
    if env.get("RAY_ADDRESS"):
        return {"log_to_driver": False}
    return {"num_cpus": workers, "include_dashboard": False, "log_to_driver": False}


def _ray_tasks(ray: Any, sources: Sequence[JobSource]) -> Iterator[Read]:
    """Results as they come; only a few chunks a CPU are under way, so that memory is bounded."""
    task = ray.remote(max_retries=_TIMES, num_cpus=1)(read_all)
    most = 2 * max(int(ray.cluster_resources().get("CPU", 1)), 1)
    chunks = _chunks(sources)
    under_way = [task.remote(chunk) for chunk in islice(chunks, most)]
    while under_way:
        (done, *_), under_way = ray.wait(under_way, num_returns=1)
        under_way += [task.remote(chunk) for chunk in islice(chunks, 1)]
        yield from ray.get(done)


def _chunks(sources: Sequence[JobSource]) -> Iterator[Sequence[JobSource]]:
    for at in range(0, len(sources), _CHUNK):
        yield sources[at : at + _CHUNK]


ENGINES: dict[str, Engine] = {"local": local, "ray": on_ray}
