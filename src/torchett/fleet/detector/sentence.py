"""An alert as one sentence with its proof."""

from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction

from torchett.fleet.detector.proof import Proof, rounded

_SHOWN = 3  # accounts by name; the others together
_NO_DROP = 0.15  # of the drop: what is left without the culprit is none


def subject(labels: Mapping[str, str]) -> str:
    """Whose effective time this is: "team ads, model dlrm", or "the fleet"."""
    return ", ".join(f"{name} {value}" for name, value in labels.items()) or "the fleet"


def sentence(labels: Mapping[str, str], since: datetime, found: Proof) -> str:
    """What fell by how much since when, what took its place, and because of which jobs."""
    ordered = sorted(found.contributions, key=lambda item: item[0] != found.account)
    named = ordered[:_SHOWN]
    rest = sum((points for _, points in ordered[_SHOWN:]), Fraction())
    if rest:
        named.append(("all else", rest))
    shown = rounded([points for _, points in named], found.drop)
    parts = [
        f"{name} {_signed(-points)}"
        for (name, _), points in zip(named, shown, strict=True)
        if points
    ]
    total = sum(shown, Fraction())
    text = (
        f"ETT of {subject(labels)} {_signed(-total)} points since {since:%a %d %b %H:%M} UTC"
        f" ({found.before:.1f}% → {found.after:.1f}%): {', '.join(parts)}"
    )
    culprit = found.culprit
    if culprit is not None:
        drop = float(found.drop)
        left = (
            "no drop" if abs(culprit.rest) <= _NO_DROP * drop else f"{-culprit.rest:+.1f}"
        ).replace("-", "−")
        text += (
            f"; of which {culprit.label} {culprit.value} jobs"
            f" {_signed(-Fraction(culprit.points))}: without them {left}"
        )
    elif found.account is not None:
        text += "; in jobs of every label"
    others = [
        name
        for name in found.suspects
        if culprit is None or name != f"{culprit.label} {culprit.value}"
    ]
    if others:
        text += f". Also new since then: {', '.join(others)}"
    return text + "."


def _signed(points: Fraction) -> str:
    return f"{float(points):+.1f}".replace("-", "−")
