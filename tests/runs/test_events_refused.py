"""Bad events/1 input is refused by one line: FILE:LINE: expected …"""

import json
from pathlib import Path
from typing import Any

import pytest

from torchett.ledger import settle
from torchett.model.errors import InputError
from torchett.runs import events

GOOD: list[dict[str, Any]] = [
    {"event": "job", "format": "events/1", "job": "a", "ranks": 2},
    {"event": "attempt_start", "attempt": 0, "t": 0, "submitted": -30, "allocated": -5},
    {"event": "span", "attempt": 0, "rank": 0, "account": "imports", "t0": 0, "t1": 4},
    {"event": "step", "attempt": 0, "rank": 1, "step": 0, "t0": 4, "t1": 6},
    {"event": "checkpoint", "attempt": 0, "step": 0, "durable": 7},
    {"event": "attempt_end", "attempt": 0, "t": 10, "outcome": "failed", "cause": "gpu_ecc"},
    {"event": "attempt_start", "attempt": 1, "t": 20, "allocated": 15, "ranks": 1},
    {"event": "step", "attempt": 1, "rank": 0, "step": 1, "t0": 21, "t1": 22},
    {"event": "now", "t": 25},
]
JOB, START, SPAN, STEP, SAVED, END, AGAIN, STEP_1, NOW = range(1, 10)  # their lines


def lines(change: dict[int, Any], more: list[Any] | None = None) -> list[str]:
    """The good file with keys of some lines changed (... removes one), and lines added."""
    out: list[str] = []
    for number, event in enumerate(GOOD, 1):
        new = change.get(number, {})
        if isinstance(new, str):
            out.append(new)
        elif new is not None:
            out.append(json.dumps({k: v for k, v in {**event, **new}.items() if v is not ...}))
    return [*out, *(line if isinstance(line, str) else json.dumps(line) for line in more or [])]


def test_the_good_file_is_good() -> None:
    assert settle(events.parse(lines({}))).number_of_failures == 1


MISSING = [
    (line, {line: {key: ...}}, key)
    for line, keys in {
        JOB: ("format", "job", "ranks"),
        START: ("attempt", "t"),
        SPAN: ("attempt", "rank", "account", "t0", "t1"),
        STEP: ("attempt", "rank", "step", "t0", "t1"),
        SAVED: ("attempt", "step", "durable"),
        END: ("attempt", "t", "outcome"),
        NOW: ("t",),
    }.items()
    for key in keys
]
NOT_FINITE = [
    (line, {line: json.dumps(GOOD[line - 1] | {key: "?"}).replace('"?"', number)}, "finite")
    for line, key in [(START, "t"), (START, "allocated"), (SPAN, "t0"), (STEP, "t1"), (NOW, "t")]
    for number in ("NaN", "Infinity", "-Infinity", "1e999")
]


@pytest.mark.parametrize(("line", "change", "said"), MISSING)
def test_a_required_key_that_is_missing(line: int, change: dict[int, Any], said: str) -> None:
    refused(lines(change), line, said)


@pytest.mark.parametrize(("line", "change", "said"), NOT_FINITE)
def test_a_number_that_is_not_finite(line: int, change: dict[int, Any], said: str) -> None:
    refused(lines(change), line, said)


@pytest.mark.parametrize(
    ("line", "change", "said"),
    [
        (STEP, {STEP: {"event": "stepp"}}, "step, span"),
        (STEP, {STEP: {"event": ...}}, "found nothing"),
        (STEP, {STEP: {"event": ["step"]}}, '["step"]'),
        (SPAN, {SPAN: {"account": "effective"}}, "start, in-loop or shutdown account or x-NAME"),
        (SPAN, {SPAN: {"account": "detect"}}, "detect"),
        (SPAN, {SPAN: {"account": "restart_gap"}}, "restart_gap"),
        (SPAN, {SPAN: {"account": "unattributed"}}, "unattributed"),
        (SPAN, {SPAN: {"account": "import"}}, '"import"'),
        (SPAN, {SPAN: {"account": "x-"}}, '"x-"'),
        (SPAN, {SPAN: {"account": "x-a b"}}, "x-a b"),
        (SPAN, {SPAN: {"account": "x-é"}}, "x-é"),
        (SPAN, {SPAN: {"background": 1}}, "true or false"),
        (SPAN, {SPAN: {"t1": -1}}, "t0 ≤ t1"),
        (STEP, {STEP: {"t0": 9}}, "t0 ≤ t1"),
        (STEP, {STEP: {"step": -1}}, "whole number ≥ 0"),
        (STEP, {STEP: {"step": 1.0}}, "whole number"),
        (STEP, {STEP: {"step": True}}, "whole number"),
        (STEP, {STEP: {"t0": "4"}}, "finite number"),
        (STEP, {STEP: {"rank": 2}}, "rank to be below 2"),
        (STEP, {STEP: {"rank": -1}}, "whole number"),
        (STEP_1, {STEP_1: {"rank": 1}}, "rank to be below 1"),
        (JOB, {JOB: {"ranks": 0}}, "whole number ≥ 1"),
        (JOB, {JOB: {"format": "events/2"}}, "events/1"),
        (JOB, {JOB: {"job": ""}}, "text"),
        (AGAIN, {AGAIN: {"ranks": 0}}, "whole number ≥ 1"),
        (END, {END: {"t": -1}}, "to end after its start"),
        (END, {END: {"outcome": "ok"}}, "success or failed or preempted"),
        (END, {END: {"domain": "me"}}, "infra or scheduler or user"),
        (END, {END: {"cause": 7}}, "text"),
        (START, {START: {"allocated": 1}}, "allocated ≤ t"),
        (START, {START: {"submitted": -1}}, "submitted ≤ allocated"),
        (START, {START: {"allocated": ..., "submitted": 1}}, "submitted ≤"),
        (AGAIN, {AGAIN: {"allocated": 9}}, "allocated after attempt 0 is over"),
        (AGAIN, {AGAIN: {"t": 9, "allocated": ...}}, "start after attempt 0 is over"),
        (AGAIN, {END: {"t": 21}}, "after attempt 0 is over"),
        (SPAN, {SPAN: {"attempt": 5}}, "attempt_start of attempt 5"),
        (STEP, {STEP: {"attempt": 5}}, "attempt_start of attempt 5"),
        (SAVED, {SAVED: {"attempt": 5}}, "attempt_start of attempt 5"),
        (END, {END: {"attempt": 5}}, "attempt_start of attempt 5"),
        (STEP, {STEP: "not json"}, "JSON object"),
        (STEP, {STEP: '{"event":"step"'}, "JSON object"),
        (STEP, {STEP: "[1, 2]"}, "JSON object"),
        (STEP, {STEP: "7"}, "JSON object"),
        (STEP, {STEP: "null"}, "JSON object"),
        (STEP, {STEP: "[" * 100_000}, "JSON object"),
        (STEP, {STEP: '{"event":"step","step":' + "9" * 5000 + "}"}, "expected"),
        (STEP, {STEP: {"attempt": 1 << 32}}, "expected"),
        (STEP, {STEP: {"rank": 1 << 32}}, "expected"),
        (NOW, {NOW: {"t": 1e18}}, "146 years apart"),
        (STEP, {STEP: {"t1": 1e18}}, "146 years apart"),
        (SAVED, {SAVED: {"durable": 1e18}}, "146 years apart"),
    ],
)
def test_refused(line: int, change: dict[int, Any], said: str) -> None:
    refused(lines(change), line, said)


@pytest.mark.parametrize("event", [GOOD[0], GOOD[1], GOOD[5]])
def test_a_second_job_start_or_end(event: dict[str, Any]) -> None:
    refused(lines({}, [event]), len(GOOD) + 1, "a second")


def test_a_file_without_a_job() -> None:
    refused(lines({JOB: None}), len(GOOD) - 1, "a job event")
    refused([], 1, "a job event")
    refused(["", "  "], 1, "a job event")


def test_the_line_is_that_of_the_event_however_many_follow() -> None:
    """Times that lie too far apart are seen at the end, and said of the line that holds them."""
    late = {"event": "now", "t": 26}
    refused(lines({NOW: {"t": 1e18}}, [late]), NOW, "146 years apart")
    refused(lines({STEP: {"rank": 2}}, [late, late]), STEP, "rank to be below 2")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    data = "\n".join(lines({})).encode().replace(b'"gpu_ecc"', b'"gpu\xff"')
    (tmp_path / "events.jsonl").write_bytes(data)
    with pytest.raises(InputError, match=r"events\.jsonl:6: expected UTF-8"):
        events.read(tmp_path / "events.jsonl")


def test_what_is_said_can_be_printed() -> None:
    """Half a character in the input (a lone surrogate) does not break the line about it."""
    bad = lines({SPAN: json.dumps(GOOD[SPAN - 1] | {"account": "\ud800"})})
    with pytest.raises(InputError) as error:
        events.parse(bad, "events.jsonl")
    assert str(error.value).encode()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.jsonl: expected a readable file"):
        events.read(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="expected a readable file"):
        events.read(tmp_path)


def test_a_file_cut_off_at_any_byte_is_read_or_refused() -> None:
    """Never any other error; and a cut inside a line names that line."""
    data = ("\n".join(lines({})) + "\n").encode()
    for cut in range(len(data)):
        part = data[:cut]
        said = outcome(part)
        line = max(1, part.rstrip(b"\n").count(b"\n") + 1)
        assert said == "" or said.startswith(f"events.jsonl:{line}: expected "), (cut, said)


def outcome(data: bytes) -> str:
    """What is said of a file; nothing if it is good."""
    try:
        settle(events.parse(data.split(b"\n"), "events.jsonl"))
    except InputError as error:
        return str(error)
    return ""


def refused(text: list[str], line: int, said: str) -> None:
    with pytest.raises(InputError) as error:
        settle(events.parse(text, "some/file.jsonl"))
    message = str(error.value)
    assert message.startswith(f"some/file.jsonl:{line}: expected "), message
    assert said in message
    assert "\n" not in message
