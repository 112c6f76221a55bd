"""A callback for a Hugging Face Trainer: what a killed save left does not stop a restart.

    from torchett.levers.checkpoint.huggingface.callback import WholeCheckpoints

    trainer = Trainer(…, callbacks=[WholeCheckpoints()])
    trainer.train(resume_from_checkpoint=True)

It looks when the Trainer is made, before `train` looks for the last checkpoint.
"""

import logging
import os
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from torchett.levers.checkpoint.huggingface.half_written import put_aside
from torchett.record.api import note

log = logging.getLogger("torchett")


class WholeCheckpoints(TrainerCallback):  # type: ignore[misc]
    """Puts half-written `checkpoint-N` folders aside, on rank 0."""

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if int(os.environ.get("RANK", "0")) != 0 or not args.output_dir:
            return
        for said in put_aside(Path(args.output_dir)):
            log.warning("torchett: %s", said)
            note("checkpoint_put_aside", {"said": said[:300]})
