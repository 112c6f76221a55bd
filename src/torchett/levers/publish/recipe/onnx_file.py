"""The model as one ONNX file beside the compiled code, for servers that are not PyTorch."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torchett.levers.publish.errors import ParityError, PublishError, one_line
from torchett.levers.publish.recipe.recipe import Recipe
from torchett.levers.publish.serving.snapshot import read_tensors


def write_onnx(program: Any, recipe: Recipe, path: Path) -> None:
    """Write the exported graph with its weights; inputs have the names that the recipe gives."""
    import torch

    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise PublishError(
            "recipe: onnx=True needs onnxscript and onnxruntime: pip install 'torchett[onnx]'"
        ) from None
    try:
        with _quietly():
            made = torch.onnx.export(
                program, dynamo=True, input_names=list(recipe.inputs), verbose=False
            )
            made.save(str(path))
    except OSError:
        raise
    except Exception as error:
        first: BaseException = error
        while first.__cause__ is not None:
            first = first.__cause__  # the operator that has no ONNX form
        raise PublishError(f"this model has no ONNX form: {one_line(first)}") from error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's notes on what it did not need."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def check_onnx(path: Path, examples: Path, recipe: Recipe) -> Mapping[str, float]:
    """How far onnxruntime's answers are from the anchor's; ParityError if further than allowed."""
    try:
        import onnxruntime
    except ImportError:
        raise PublishError(
            "recipe: onnx=True needs onnxscript and onnxruntime: pip install 'torchett[onnx]'"
        ) from None
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    taken = {one.name for one in session.get_inputs()}  # one that is not used is left out
    tensors = read_tensors(examples)
    most, total, count = 0.0, 0.0, 0
    for batch in recipe.batches:
        given = {
            name: tensors[f"{batch}.input.{at}"].numpy()
            for at, name in enumerate(recipe.inputs)
            if name in taken
        }
        try:
            answers = session.run(None, given)
        except Exception as error:
            raise ParityError(f"onnx: a batch of {batch} is refused: {one_line(error)}") from error
        for at, ours in enumerate(answers):
            theirs = tensors[f"{batch}.answer.{at}"].double().numpy()
            off = abs(ours.astype("float64") - theirs)
            most = max(most, float(off.max(initial=0.0)))
            total, count = total + float(off.sum()), count + off.size
    mean = total / max(count, 1)
    bounds = recipe.parity
    if not (most <= bounds.most and mean <= bounds.mean):
        raise ParityError(
            f"parity: ONNX answers are off by {most:.3g} at most and {mean:.3g} on average: "
            f"expected {bounds.most:g} and {bounds.mean:g}"
        )
    return {"onnx_max_error": most, "onnx_mean_error": mean}
