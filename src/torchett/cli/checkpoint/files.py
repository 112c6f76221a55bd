"""`ett checkpoint export|import`: checkpoints to and from the files of other tools."""

from pathlib import Path
from typing import Any

import click

from torchett.cli.output import print_json, speaks_plainly
from torchett.levers.checkpoint.errors import CheckpointError

_TYPES = ("float64", "float32", "bfloat16", "float16")


@click.command("export")
@click.argument("where")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--key",
    help="Export only what was saved under KEY, without that prefix (for safetensors: model).",
)
@click.option(
    "--dtype", type=click.Choice(_TYPES), help="Convert floating-point tensors to this dtype."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@speaks_plainly
def export_(where: str, file: Path, key: str | None, dtype: str | None, as_json: bool) -> None:
    """Write a checkpoint to one FILE.

    WHERE is a checkpoint, or a folder of which the newest good one is taken. The FILE is
    .safetensors, or .pt, .pth or .bin as torch.save writes them. Needs no GPU and no
    ranks.
    """
    from torchett.levers.checkpoint.stored.exchange import export, kind_of_file
    from torchett.levers.checkpoint.stored.reading import load

    if kind_of_file(file) == "safetensors" and key is None:
        key = "model"
    to: Any = None
    if dtype is not None:
        import torch

        to = getattr(torch, dtype)
    tensors, left_out = export(load(where, key, dtype=to), file, key)
    if as_json:
        print_json({"file": str(file), "tensors": tensors, "left_out": left_out})
        return
    more = f"; {left_out} values that are not tensors were left out" if left_out else ""
    click.echo(f"{file}  {tensors} tensors, {file.stat().st_size / 2**20:.1f} MiB{more}")


@click.command("import")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("where")
@click.option(
    "--key", default="model", show_default=True, help="Key for files that hold only tensors."
)
@click.option(
    "--step",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="The last step that was trained.",
)
@click.option("--trust", is_flag=True, help="Let a file of torch.save run the code it contains.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@speaks_plainly
def import_(source: Path, where: str, key: str, step: int, trust: bool, as_json: bool) -> None:
    """Make a checkpoint under WHERE from SOURCE.

    SOURCE is a DCP folder, a file of torch.save or safetensors, or a Hugging Face folder. `restore`
    then returns STEP + 1.
    """
    from torchett.levers.checkpoint.stored.exchange import read_foreign, write

    state = read_foreign(source, key, trust)
    if not state:
        raise CheckpointError(f"{source} is empty: there is nothing to import")
    path = write(state, where, step)
    if as_json:
        print_json({"path": path, "keys": list(state)})
    else:
        click.echo(f"{path}  {', '.join(state)}")
