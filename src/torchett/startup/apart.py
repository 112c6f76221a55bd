"""A call in a process of its own: what it returns comes back pickled, what it raises is raised.

    caller   ──┐ fn, args, seed                        ┌── result, or the error itself
    process    └─ fresh interpreter ── fn(*args) ──────┘   (with the traceback as a note)

The process is spawned, not forked: threads and a CUDA context do not survive a fork. A script
that set another start method (`multiprocessing.set_start_method("forkserver")`) gets that one.

multiprocessing is imported by who calls: it makes a module `__mp_main__`, and where that stands
before those of torch, torch's cache keys name it and are others.
"""

import pickle
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torchett.startup.surroundings import own_random_numbers

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess


def call_apart(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    seed: int | None,
    started: "Callable[[BaseProcess], None]",
) -> Any:
    """function(*args), as computed by a process of its own."""
    import multiprocessing

    context = (
        multiprocessing.get_context("forkserver")
        if multiprocessing.get_start_method(allow_none=True) == "forkserver"
        else multiprocessing.get_context("spawn")
    )
    here, there = context.Pipe(duplex=False)
    process = context.Process(
        target=_answer, args=(there, function, args, seed), name=f"ett-{function.__name__}"
    )
    process.start()
    started(process)
    there.close()
    try:
        answer = here.recv_bytes()
    except EOFError:
        process.join()
        raise RuntimeError(
            f"the process of stage '{function.__name__}' died with exit code {process.exitcode}"
        ) from None
    process.join()
    result, error = pickle.loads(answer)
    if error is not None:
        raise error
    return result


def _answer(
    there: "Connection", function: Callable[..., Any], args: tuple[Any, ...], seed: int | None
) -> None:
    """What the process does."""
    try:
        with own_random_numbers(seed) if seed is not None else nullcontext():
            result = function(*args)
        # Plain pickle: torch's own way sends handles to memory that ends with this process.
        answer = pickle.dumps((result, None))
    except BaseException as error:
        answer = _pickled(error)
    there.send_bytes(answer)


def _pickled(error: BaseException) -> bytes:
    """The error with its traceback as a note; its words alone where it cannot be pickled."""
    story = "".join(traceback.format_exception(error))
    error.add_note(f"in a process of its own:\n{story}")
    try:
        answer = pickle.dumps((None, error.with_traceback(None)))
        pickle.loads(answer)
    except Exception:
        return pickle.dumps((None, RuntimeError(story)))
    return answer
