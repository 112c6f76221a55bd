"""A run as TensorBoard event files: scalars over the job, final figures, the report as text."""

from pathlib import Path

from torchett.ledger.history import History
from torchett.ledger.ledger import Ledger
from torchett.model.errors import RunError
from torchett.sinks.scalars import final, points


def write(ledger: Ledger, history: History, folder: Path) -> None:
    """Write event files into the folder; a point's step is its whole second in the job."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise RunError(
                "tensorboard: not installed; pip install 'torchett[tensorboard]'"
            ) from None
    writer = SummaryWriter(str(folder))
    found = points(ledger, history)
    for point in found:
        for name, value in point.values.items():
            writer.add_scalar(name, value, round(point.at_s), point.wall_s)
    last = found[-1].wall_s if found else None
    for name, value in final(ledger).items():
        writer.add_scalar(name, value, 0, last)
    writer.add_text("ett/accounts", _table(ledger), 0, last)
    writer.close()


def _table(ledger: Ledger) -> str:
    rows = [
        f"| {name} | {ns / 1e9:.3f} | {100 * ns / (ledger.rank_ns or 1):.2f} |"
        for name, ns in sorted(ledger.accounts.items(), key=lambda item: -item[1])
    ]
    return "\n".join(["| account | rank-seconds | % |", "|---|---|---|", *rows])
