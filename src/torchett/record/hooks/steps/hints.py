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
            f"{unsure / 1e9:.1f} s count as effective although no training was seen in them (the"
            " forward pass is not that of a torch.nn.Module, or there is a pause between two"
            f" updates of a step): without them {100 * (1 - unsure / worked):.0f}% of the effective"
            " time is left; mark steps with ett.step(i)"
        )
    if saves.resumed_unknown:
        found.append(
            "a checkpoint was loaded, but its step is not known: steps are numbered from 0 again,"
            " so earlier ones count as lost; number them with ett.steps(…, start=)"
        )
    return found
