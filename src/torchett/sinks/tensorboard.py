"""A run as TensorBoard event files: scalars over time, final figures, the accounts as text."""

from pathlib import Path
from typing import Any

from torchett.ledger.ledger import Ledger
from torchett.model.errors import RunError
from torchett.sinks.scalars import Point, final


class TensorBoard:
    """Event files in a folder; the step of a point is its second in the job."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self._writer = _writer(folder)
        self._last: float | None = None

    def log(self, point: Point) -> None:
        for name, value in point.values.items():
            self._writer.add_scalar(name, value, round(point.at_s), point.wall_s)
        self._last = point.wall_s
        self._writer.flush()

    def close(self, ledger: Ledger) -> None:
        for name, value in final(ledger).items():
            self._writer.add_scalar(name, value, 0, self._last)
        self._writer.add_text("ett/accounts", _table(ledger), 0, self._last)
        self._writer.close()


def _writer(folder: Path) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise RunError(
                "tensorboard: not installed; pip install 'torchett[tensorboard]'"
            ) from None
    return SummaryWriter(str(folder))


def _table(ledger: Ledger) -> str:
    rows = [
        f"| {name} | {ns / 1e9:.3f} | {100 * ns / (ledger.rank_ns or 1):.2f} |"
        for name, ns in sorted(ledger.accounts.items(), key=lambda item: -item[1])
    ]
    return "\n".join(["| account | rank-seconds | % |", "|---|---|---|", *rows])
