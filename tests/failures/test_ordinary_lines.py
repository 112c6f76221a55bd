"""Lines that healthy programs print are no evidence, however near they are to an error's words."""

import time

import pytest

from torchett.failures import classify

ORDINARY = [
    "episode 40 return: -15.2",
    "avg return: -7.5",
    "eval return: -9.1",
    "log10 error: -11.2",
    "return -6.0",
    "12.1 s over wall clock",
    "use_spot: true, resume_if_preempted: true",
    "preemptible: true, retries when evicted: 3",
    "GPU hotspot temperature 83, fan interrupted",
    "this machine will be stopped after the run",
    "this folder contains information about the licences",
    "repo contains inference code",
    "the loss is inferred from the labels",
    "could not find arguments in the checkpoint ...",
    "nvcc not found, fused kernels are compiled on demand",
    "flash-attn 2.1 is incompatible with the installed version",
    "wandb: Invalid API key",
    "INFO:jax._src.xla_bridge:Unable to initialize backend 'rocm': not found",
    "nvidia-imex is active",
    "NodeFailure retries: 3",
    "NodeUnhealthy=False",
    "GET /healthz 404 Not Found",
]


@pytest.mark.parametrize("line", ORDINARY)
def test_an_ordinary_line_is_no_cause(line: str) -> None:
    assert classify(line).category == "unknown"


@pytest.mark.parametrize("line", ORDINARY)
def test_an_error_counts_beside_it(line: str) -> None:
    text = f"{line}\nTraceback (most recent call last):\nValueError: bad loss"
    assert classify(text).category == "user_code_exception"


@pytest.mark.parametrize("begin", ["Error: deadbeef", "RuntimeError: xxx", "0123456789"])
def test_a_long_line_is_searched_in_linear_time(begin: str) -> None:
    line = (begin * 4000)[:10_000]
    classify(line)  # patterns are compiled once
    began = time.process_time()
    classify(line + " ")
    assert time.process_time() - began < 0.25
