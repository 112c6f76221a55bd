"""A line of a log is taken apart whatever launcher and logger put before the message."""

import pytest

from torchett.failures.lines import parse_line


@pytest.mark.parametrize(
    ("text", "rank", "message"),
    [
        ("[rank3]: ValueError: x", 3, "ValueError: x"),
        ("[default11]:ValueError: x", 11, "ValueError: x"),
        ("[1,5]<stderr>:ValueError: x", 5, "ValueError: x"),
        ("12: ValueError: x", 12, "ValueError: x"),
        ("[Rank 4] ValueError: x", 4, "ValueError: x"),
        ("(RayTrainWorker pid=44, ip=10.0.0.1) [rank2]: ValueError: x", 2, "ValueError: x"),
        ("2025-03-02 11:58:30,123 - ERROR - [rank1]: ValueError: x", 1, "ValueError: x"),
        ("[2025-03-02T11:58:30.123Z] [default7]:ValueError: x", 7, "ValueError: x"),
        ("Mar  2 11:58:30 gpu-4 [rank6]: ValueError: x", 6, "ValueError: x"),
        ("\x1b[31m[rank0]: ValueError: x\x1b[0m", 0, "ValueError: x"),
        ("ValueError: x", None, "ValueError: x"),
        ("node3:41:99 [5] NCCL WARN x", 5, "NCCL WARN x"),
        ("  rank      : 3 (local_rank: 1)", 3, "rank      : 3 (local_rank: 1)"),
    ],
)
def test_rank_and_message(text: str, rank: int | None, message: str) -> None:
    line = parse_line(text, 1)
    assert (line.rank, line.message) == (rank, message)


@pytest.mark.parametrize(
    "text",
    [
        "2025-03-02 11:58:30,250 x",
        "[2025-03-02T11:58:30.250Z] x",
        "[rank3]:[E302 11:58:30.250000000 ProcessGroupNCCL.cpp:616] x",
        "E0302 11:58:30.250000 4711 torch/agent/api.py:900] x",
        "03/02/2025 11:58:30.250 x",
        "2025/03/02 11:58:30.250 x",
    ],
)
def test_times_of_all_formats_compare(text: str) -> None:
    """They count from the start of the year, because many logs omit it."""
    assert parse_line(text, 1).time_s == (31 + 29 + 1) * 86400 + 11 * 3600 + 58 * 60 + 30.25


def test_syslog_has_whole_seconds_and_a_host() -> None:
    line = parse_line("Mar  2 11:58:30 gpu-4 kernel: Out of memory: Killed process 7", 9)
    assert line.time_s == (31 + 29 + 1) * 86400 + 11 * 3600 + 58 * 60 + 30
    assert line.message == "Out of memory: Killed process 7"
    assert line.number == 9


@pytest.mark.parametrize("text", ["[ 1843.308] x", "11:58:30 x", "2025-02-31 11:58:30 x"])
def test_a_time_without_a_date_is_none(text: str) -> None:
    assert parse_line(text, 1).time_s is None


@pytest.mark.parametrize("text", ["", "   ", "[rank3]:", "]", "12:", "[[[", "\x1b[31m"])
def test_odd_lines_are_kept(text: str) -> None:
    assert parse_line(text, 1).number == 1
