"""What became of a run's model, for its report and page."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchett.runs.reader import RunReader


def publish_asides(reader: "RunReader") -> list[str]:
    """A line a model that the run had published: when after its devices' release, and as what."""
    facts = list(reader.facts("publish"))
    if not facts:
        return []
    from torchett.levers.publish.report_lines import publish_lines

    end_ns = reader.job.attempts[-1].end_ns if reader.job.attempts else None
    return publish_lines(facts, None if end_ns is None else end_ns / 1e9)
