"""torchtitan: its structured logger with torchett's handler, around a loop like its trainer's."""

import os
import time

os.environ.setdefault(
    "TITAN_STRUCT_LOGGER_HANDLERS", "torchett.record.adapters.torchtitan.register"
)

from torchtitan.observability import structured_logger as sl


def main() -> None:
    sl.init_structured_logger(source="training", output_dir="outputs")
    sl.log_trace_instant("structured_logger_started")
    with sl.log_trace_span("torch_distributed_init"):
        time.sleep(0.1)
    with sl.log_trace_span("checkpoint_load"):
        time.sleep(0.1)
    for step in range(1, 13):
        sl.set_step(step, relative_step=step)
        with sl.log_trace_span("step"):
            with sl.log_trace_span("fetching_batch"):
                time.sleep(0.01)
            with sl.log_trace_span("fwd_bwd"):
                time.sleep(0.02)
            with sl.log_trace_span("optim"):
                time.sleep(0.01)
            with sl.log_trace_span("checkpoint_save"):
                if step % 5 == 0:
                    sl.add_step_tag("checkpoint_save")
                    time.sleep(0.03)
    with sl.log_trace_span("torch_distributed_teardown"):
        time.sleep(0.05)


if __name__ == "__main__":
    main()
