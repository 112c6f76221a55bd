"""What the hooks did not understand of a job, in words for whoever reads its report."""

from torchett.record.hooks.loop import Loop
from torchett.record.hooks.saves import Saves


def hints(loop: Loop, saves: Saves) -> list[str]:
    """What was not recognised, and the line of code that would say it."""
    found: list[str] = []
    if not loop.steps:
        seen = f"{loop.backwards} backward passes" if loop.backwards else "no backward pass"
        found.append(
            f"no step was recognised ({seen}, no optimizer step that could be seen):"
            " mark the loop with ett.steps(…) or ett.step(i)"
        )
    if loop.pauses:
        found.append(
            f"{loop.pauses} long pauses between steps ({loop.pauses_ns / 1e9:.1f} s) were not"
            " recognised: mark them with `with ett.blocked(…)`"
        )
    if saves.resumed_unknown:
        found.append(
            "a checkpoint was loaded, but not which step it holds: steps are numbered from 0"
            " again, so that earlier ones count as lost; number them with ett.steps(…, start=)"
        )
    return found
