"""What begins a failure beats what follows from it, and what ends the job comes last."""

import pytest

from torchett.failures import UNKNOWN, Outlook, Role, cause_of, classify, classify_exit

TIMEOUT = "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=X)"
CLOSED = "NCCL WARN socketProgress: Connection closed by remote peer node2<4711>"
TEARDOWN = "Sending process 812 closing signal SIGTERM"


def test_the_first_error_beats_cascades_and_teardown_wherever_it_stands() -> None:
    text = f"{TEARDOWN}\n[rank0]: {CLOSED}\n[rank1]: {TIMEOUT.format(1)}\n[rank2]: KeyError: 'x'"
    verdict = classify(text)
    assert verdict.category == "user_code_exception"
    assert verdict.ranks == {0: Role.CASCADE, 1: Role.CASCADE, 2: Role.INITIATING}
    assert verdict.evidence is not None
    assert verdict.evidence.line.number == 4
    assert verdict.outlook is Outlook.STOP


@pytest.mark.parametrize("kind", ["internal error", "unhandled system error"])
def test_what_torch_raises_when_nccl_fails_is_no_error_of_the_script(kind: str) -> None:
    """The exception's own line says less than NCCL's, which comes after it."""
    raised = f"torch.distributed.DistBackendError: NCCL error in: ../c10d/X.cpp:1, {kind}, NCCL 2.1"
    assert classify(raised).category == "nccl_remote_peer"
    verdict = classify(f"{raised}\nLast error:\nNet : Connection closed by remote peer n2<1>")
    assert (verdict.category, verdict.outlook) == ("nccl_remote_peer", Outlook.RESTART_NOW)


def test_times_order_what_positions_do_not() -> None:
    text = (
        "2025-01-01 10:00:09 [rank0]: OSError: [Errno 28] No space left on device\n"
        "2025-01-01 10:00:01 [rank1]: PermissionError: [Errno 13] Permission denied: '/x'\n"
    )
    assert classify(text).category == "permission_denied"
    assert classify(text.replace("2025-01-01 10:00:09 ", "")).category == "storage_full"


def test_several_ranks_with_the_same_error_all_began_it() -> None:
    text = "[rank0]: CUDA out of memory\n[rank1]: CUDA out of memory\n[rank2]: ValueError: x"
    verdict = classify(text)
    assert verdict.initiating_ranks == [0, 1]
    assert verdict.ranks[2] is Role.CASCADE


def test_generic_lines_alone_are_unknown() -> None:
    text = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n  exitcode  : 1"
    verdict = classify(text)
    assert (verdict.category, verdict.domain) == (UNKNOWN, "unknown")
    assert classify("all is well\nstep 3 loss 0.1").evidence is None
    assert cause_of(verdict) == (None, None)


def test_teardown_alone_says_who_ended_it() -> None:
    assert classify(TEARDOWN).category == "external_sigterm"


@pytest.mark.parametrize(
    "line",
    [
        " iteration 40/ 500 | lm loss: 2.31E+00 | loss scale: 1.0 | grad norm: 0.9 | number of"
        " skipped iterations:   0 | number of nan iterations:   0 |",
        "node1:41:99 [0] NCCL INFO NET/IB : No device found.",
        "node1:41:99 [0] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.",
        "x.py:12: FutureWarning: You are using `torch.load` with `weights_only=False`",
        "TensorBoard 2.19.0 at http://localhost:6006/ (Press CTRL+C to quit)",
        "step 0 grad_norm: inf loss 10.9 lr 0.0",
        "  MemoryPressure   False   Mon, 01 Nov 2021 11:20:33   KubeletHasSufficientMemory",
        "kv cache: 311 blocks evicted",
        "[Hardware Error]: Corrected error, no action required.",
        "pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0",
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default",
        "  activeDeadlineSeconds: 86400",
        "checkpoint saved to /ckpt/step_100 in 3.1 s, 12 errors skipped",
        "destroy_process_group() was not called before program exit, which can leak resources",
    ],
)
def test_what_healthy_jobs_print_is_no_evidence(line: str) -> None:
    assert classify(line).category == UNKNOWN


def test_warnings_of_a_try_to_connect_do_not_hide_what_came_later() -> None:
    tried = "[W302 10:00:00.1 socket.cpp:752] [c10d] The client socket has failed to connect to [x]"
    assert classify(f"{tried}\n{TIMEOUT.format(1)}").category == "nccl_timeout"
    assert classify(tried).category == "rendezvous_store"


def test_source_code_in_a_traceback_is_no_evidence() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 3, in f\n'
        '    raise RuntimeError("CUDA out of memory")\n'
        "ValueError: too few rows\n"
    )
    assert classify(text).category == "user_code_exception"


def test_a_progress_bar_hides_no_error_and_lines_are_counted_as_editors_do() -> None:
    verdict = classify("step\r\n10%|#  |\r20%|## |\rKeyError: 'x'\nChildFailedError")
    assert verdict.category == "user_code_exception"
    assert verdict.evidence is not None
    assert verdict.evidence.line.number == 2


def test_a_line_of_a_million_characters_is_read_in_time() -> None:
    assert classify("x" * 10**6 + " error loss nan " * 10**4).evidence is None


def test_lines_of_a_good_attempt_are_no_evidence() -> None:
    usual = (
        "WARNING 10: s3://b/k: timed out after 31 s\nOSError: [Errno 5] Input/output error: 'a1'"
    )
    failed = f"{usual.replace('31', '44').replace('a1', 'a2')}\nKeyError: 'x'"
    assert classify(failed).category == "remote_storage_timeout"
    assert classify(failed, good=usual).category == "user_code_exception"


def test_what_will_be_tried_again_is_weak() -> None:
    retried = "botocore: Read timeout on endpoint URL: 'x', retrying in 5 s"
    assert classify(f"{retried}\n{TIMEOUT.format(0)}").category == "nccl_timeout"
    assert classify(retried).category == "remote_storage_timeout"


def test_the_root_cause_of_the_agents_summary_counts() -> None:
    summary = """train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2025-03-02_11:58:30
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4412)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 5 (local_rank: 0)
  exitcode  : -11 (pid: 4411)
  traceback : Signal 11 (SIGSEGV) received by PID 4411
============================================================"""
    verdict = classify(summary)
    assert verdict.category == "user_code_exception"
    assert verdict.initiating_ranks == [5]


@pytest.mark.parametrize(
    ("code", "category"),
    [
        (-9, "host_oom_kill"),
        (137, "host_oom_kill"),
        (-15, "external_sigterm"),
        (143, "external_sigterm"),
        (-2, "user_cancel"),
        (130, "user_cancel"),
        (-11, "user_code_exception"),
        (139, "user_code_exception"),
        (-7, "dataloader_shm"),
        (124, "time_limit"),
        (126, "permission_denied"),
        (127, "import_error"),
        (1, UNKNOWN),
        (-6, UNKNOWN),
        (42, UNKNOWN),
        (-99, UNKNOWN),
    ],
)
def test_exit_status_alone(code: int, category: str) -> None:
    assert classify_exit(code).category == category


def test_a_segmentation_fault_may_not_come_again() -> None:
    assert classify_exit(-11).outlook is Outlook.RESTART_NOW


def test_causes_for_the_ledger() -> None:
    assert cause_of(classify("CUDA out of memory")) == ("cuda_oom", "user")
    assert cause_of(classify("JobState=TIMEOUT")) == ("time_limit", "scheduler")


@pytest.mark.parametrize(
    ("row", "category"),
    [
        ("812233        train        gpu       team         64    TIMEOUT      0:0", "time_limit"),
        ("812233.batch  batch                  team          1  PREEMPTED      0:15", "preemption"),
        ("812233_4|train|gpu|team|64|NODE_FAIL|0:0", "node_failure"),
        ("812233|train|gpu|team|64|OUT_OF_MEMORY|0:125", "host_oom_kill"),
        (
            "812233        train        gpu       team         64 CANCELLED by 1001  0:0",
            "user_cancel",
        ),
        ("812233        train        gpu       team         64     FAILED      1:0", UNKNOWN),
    ],
)
def test_states_of_sacct(row: str, category: str) -> None:
    assert classify(row).category == category


def test_names_and_dates_that_look_like_states_are_none() -> None:
    assert classify("2025-03-02 11:58 server timeout set to 30").category == UNKNOWN
    assert classify("NVRM: Xid (PCI:0000:79:00): 63, pid=1, row remapped").category == "gpu_ecc"
