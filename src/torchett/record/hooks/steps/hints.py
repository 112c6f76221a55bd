"""What the hooks did not recognise in a job, as notes for its report."""

from torchett.record.hooks.saves import SaveDetector
from torchett.record.hooks.steps.step_detector import StepDetector

_MOST_UNSURE_NS, _MOST_UNSURE = 100_000_000, 0.03  # that is left unsaid


def hints(detector: StepDetector, saves: SaveDetector) -> list[str]:
    """What was not recognised, and the line of code that records it."""
    found: list[str] = []
    if not detector.steps:
        seen = f"{detector.backwards} backward passes" if detector.backwards else "no backward pass"
        found.append(
            f"no step was recognised ({seen}, no optimizer step that could be seen):"
            " mark the loop with ett.steps(…) or ett.step(i)"
        )
    if detector.pauses:
        paused = f"{detector.pauses} long pauses between steps ({detector.pauses_ns / 1e9:.1f} s)"
        found.append(f"{paused} were not recognised: mark them with `with ett.blocked(…)`")
    unsure, worked = detector.unsure_ns, detector.worked_ns
    if unsure > max(_MOST_UNSURE_NS, _MOST_UNSURE * worked):
        found.append(
            f"{unsure / 1e9:.1f} s count as effective in which no training was seen (the forward"
            " pass is no torch.nn.Module's, or a pause lies between two updates of a step): if"
            f" there was none, {100 * (1 - unsure / worked):.0f}% of the effective time is left;"
            " mark steps with ett.step(i)"
        )
    if saves.resumed_unknown:
        found.append(
            "a checkpoint was loaded, but not which step it holds: steps are numbered from 0"
            " again, so that earlier ones count as lost; number them with ett.steps(…, start=)"
        )
    return found
