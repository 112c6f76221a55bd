"""A call in a separate process: its result is pickled back, its error is raised in the caller.

    caller   ──┐ fn, args, seed                        ┌── result, or the error itself
    process    └─ fresh interpreter ── fn(*args) ──────┘   (with the traceback as a note)

The process is spawned, not forked: threads and a CUDA context do not survive a fork. If the script
set the start method `forkserver`, that one is used.

multiprocessing is imported inside the function: the import makes a module `__mp_main__`. If that
comes before torch's modules in `sys.modules`, torch's cache keys contain it and differ.
"""

import pickle
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torchett.levers.startup.plan.surroundings import own_random_numbers

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
    """function(*args), computed by a separate process."""
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
    """The main function of the process."""
    try:
        with own_random_numbers(seed) if seed is not None else nullcontext():
            result = function(*args)
        # Plain pickle: torch's reducers would send handles to memory that ends with this process.
        answer = pickle.dumps((result, None))
    except BaseException as error:
        answer = _pickled(error)
    there.send_bytes(answer)


def _pickled(error: BaseException) -> bytes:
    """The error with its traceback as a note; only the text if it cannot be pickled."""
    story = "".join(traceback.format_exception(error))
    error.add_note(f"in the process of the stage:\n{story}")
    try:
        answer = pickle.dumps((None, error.with_traceback(None)))
        pickle.loads(answer)
    except Exception:
        return pickle.dumps((None, RuntimeError(story)))
    return answer
