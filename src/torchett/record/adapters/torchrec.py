"""TorchRec: a train pipeline whose every `progress` is a step.

    from torchett.record.adapters.torchrec import watched
    pipeline = watched(TrainPipelineSparseDist(model, optimizer, device))
    pipeline.progress(iter(loader))

Waiting for the loader is data_wait, however many batches the pipeline fetches ahead.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torchett.record import api
from torchett.record.adapters.phases import open_record
from torchett.record.clock import now_ns
from torchett.record.patches import install_on

_PIPELINES = "torchrec.distributed.train_pipeline.train_pipelines"


def watched(pipeline: Any, start: int = 0) -> Any:
    """The same pipeline; its steps are numbered from `start`."""
    open_record()
    state = _State(start)

    def make(progress: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(dataloader_iter: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
            with api.step(state.index):  # the end of the data is raised: no step then
                result = progress(state.timed(dataloader_iter), *args, **kwargs)
            state.index += 1
            return result

        return stepping

    install_on(pipeline, f"{_PIPELINES}:TrainPipeline.progress", make)
    return pipeline


class _State:
    """The next step's number, and a timed wrapper for each iterator."""

    def __init__(self, start: int) -> None:
        self.index = start
        self._given: Any = None
        self._timed: _Timed | None = None
        self.fetched = False

    def timed(self, given: Any) -> "_Timed":
        """The pipeline knows its iterator by identity: the same one gets the same wrapper."""
        if self._timed is None or self._given is not given:
            self._given, self._timed = given, _Timed(given, self)
        return self._timed


class _Timed(Iterator[Any]):
    """An iterator whose waits are recorded."""

    def __init__(self, source: Iterator[Any], state: _State) -> None:
        self._source, self._state = source, state

    def __next__(self) -> Any:
        began = now_ns()
        try:
            return next(self._source)
        finally:
            account = "data_wait" if self._state.fetched else "get_first_batch_data"
            self._state.fetched = True
            api.past_span(account, began, now_ns())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)
