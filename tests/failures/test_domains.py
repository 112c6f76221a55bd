"""The domain of a failure where a rule names no category, and of an exception for the ledger."""

from pathlib import Path

import pytest

from torchett.failures import Outlook, classify, domain_of_exception, read_rules
from torchett.model.errors import InputError


def traceback(path: str, function: str, error: str) -> str:
    return (
        'Traceback (most recent call last):\n  File "/app/train.py", line 3, in <module>\n'
        f'    main()\n  File "{path}", line 9, in {function}\n    call()\n{error}\n'
    )


@pytest.mark.parametrize(
    ("text", "category", "domain"),
    [
        ("exitcode  : -6 (pid: 12)", "unknown", "infra"),
        ("exitcode  : -4 (pid: 12)", "user_code_exception", "user"),
        ("free(): invalid pointer", "unknown", "user"),
        ("CUDA error: a new one", "unknown", "user"),
        ("n1:1:2 [0] new.cc:7 NCCL WARN something new", "unknown", "infra"),
        ("NVRM: something new", "unknown", "infra"),
        ("srun: error: something new", "unknown", "scheduler"),
        ("0/9 nodes are available: 9 something new", "unknown", "scheduler"),
        ("fatal: option --x is required", "unknown", "user"),
        ("epoch 3, all is well", "unknown", "unknown"),
    ],
)
def test_the_kind_of_evidence_says_a_domain(text: str, category: str, domain: str) -> None:
    verdict = classify(text)
    assert (verdict.category, verdict.domain) == (category, domain)


@pytest.mark.parametrize(
    ("path", "function", "error", "category", "domain"),
    [
        ("/app/model.py", "forward", "RuntimeError: 41", "user_code_exception", "user"),
        ("/env/site-packages/torch/distributed/distributed_c10d.py", "all_reduce",
         "RuntimeError: 41", "unknown", "infra"),
        ("/env/site-packages/botocore/client.py", "_api", "RuntimeError: 41", "unknown", "infra"),
        ("/app/trainer.py", "load_checkpoint", "KeyError: 41", "checkpoint_incompatible", "user"),
    ],
)  # fmt: skip
def test_the_innermost_frame_says_where_an_exception_is_from(
    path: str, function: str, error: str, category: str, domain: str
) -> None:
    verdict = classify(traceback(path, function, error))
    assert (verdict.category, verdict.domain) == (category, domain)


def test_a_known_message_counts_for_more_than_its_kind() -> None:
    text = "exitcode  : -6 (pid: 12)\n" + traceback(
        "/env/site-packages/botocore/client.py",
        "_api",
        "torch.OutOfMemoryError: CUDA out of memory",
    )
    assert classify(text).category == "cuda_oom"


def test_a_rule_without_a_category_has_a_domain_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    row = '[[rule]]\nname = "a"\npattern = "abc"\n'
    path.write_text(row + 'category = "unknown"\ndomain = "scheduler"\noutlook = "stop"\n')
    verdict = classify("abc", rules=read_rules(path))
    assert (verdict.domain, verdict.outlook) == ("scheduler", Outlook.STOP)
    path.write_text(row + 'category = "cuda_oom"\ndomain = "infra"\n')
    with pytest.raises(InputError, match="unexpected domain 'infra'"):
        read_rules(path)


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("ModuleNotFoundError: No module named 'x'", "user"),
        ("ValueError: bad lr", "user"),
        ("Diverged", "user"),
        ("KeyboardInterrupt: ", "user"),
        ("OutOfMemoryError: CUDA out of memory", "user"),
        ("FileNotFoundError: [Errno 2] No such file: 'a'", "user"),
        ("RuntimeError: CUDA error: device-side assert triggered", "user"),
        ("OSError: [Errno 28] No space left on device", "infra"),
        ("OSError: [Errno 5] Input/output error", "infra"),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "infra"),
        ("TimeoutError: timed out", "infra"),
        ("DistBackendError: NCCL error in: …", "infra"),
        ("DistNetworkError: The client socket has timed out", "infra"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. ", "infra"),
        ("RuntimeError: [gloo/transport/tcp/pair.cc:5] Connection reset by peer", "infra"),
        ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", "infra"),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected", "infra"),
        ("AcceleratorError: CUDA error: unknown error", "infra"),
        ("RuntimeError: No CUDA GPUs are available", "infra"),
        ("ChildFailedError: ", None),
    ],
)
def test_an_exception_is_the_users_unless_its_type_or_message_says_otherwise(
    text: str, domain: str | None
) -> None:
    assert domain_of_exception(text) == domain
