"""The construction of models as one span: from the first module to the optimizer or last module.

Linear() Linear() …  to(device), wrapped, sharded  AdamW()
├─────────────── train_module_creation ──────────────────┤
"""

from torchett.record.hooks.span_writer import SpanWriter

_BRIDGED_NS = 10_000_000_000  # from the last module to the optimizer: moved, wrapped, sharded


class ModelSpans:
    """When modules began to be constructed, and when that ended."""

    def __init__(self, writer: SpanWriter) -> None:
        self._writer = writer
        self.since = self.until = 0
        self._making = 0  # optimizers under construction: one may construct others

    def module_made(self, t: int) -> None:
        self.until = t
        self.since = self.since or t

    def optimizer_begins(self) -> None:
        self._making += 1

    def optimizer_made(self) -> bool:
        """Whether that was the outermost one."""
        self._making -= 1
        return self._making <= 0

    def tell_with_optimizer(self, t0: int, t1: int) -> None:
        """The optimizer that was made from t0 to t1 completes the model."""
        if self.since and t0 - self.until > _BRIDGED_NS:
            self.tell()  # what came between is not known
        self.since = self.since or t0
        self.tell(t1)

    def tell(self, until: int = 0) -> None:
        """Write the span, if there is one."""
        if self.since:
            self._writer.span("train_module_creation", self.since, until or self.until)
            self.since = 0
