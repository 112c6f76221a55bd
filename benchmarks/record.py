"""What it costs to record one step, or one span: CPU time, bytes on disk, and what a kill leaves.

    burst    nothing but recording: the clock is read every 64 calls, the same loop without the
             recording is taken off, and the median batch is what a call costs. The mean over the
             whole run has everything in it: folding, flushing, other threads.
    paced    one call a millisecond, as in a real loop: caches are cold, other threads wake up.
             CPU of the whole process, less that of the same loop without the recording.
    SIGKILL  a process records N steps and kills itself right after the Nth; a reader then counts.

Peers are called as their own documentation says. ml-goodput-measurement writes to Google's Cloud
Logging alone; its recorder takes another logger object (as its tests do), so it is measured with
one that does nothing, one that appends JSON lines to a file, and its own asynchronous one with
only the remote call replaced. nv-one-logger leaves single steps out of its export unless told.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from _table import Bar, Column, Report, Row, Sheet, bar, fresh, medians, options, serve

BATCH = 64
PACE_S = 0.001
Loop = Callable[[int, int], None]  # (at, n): n turns of a loop, from step `at` on


@dataclass(frozen=True, slots=True)
class Calls:
    """A recorder that is open: the loop that records, and the same loop without recording."""

    record: Loop
    bare: Loop
    finish: Callable[[], object] = lambda: None  # wait until all is written
    lag: int = 0  # steps that have begun but not ended when `record` returns


def turn(at: int, n: int) -> None:
    for _ in range(at, at + n):
        pass


# Ours ------------------------------------------------------------------------------------------


def _init(folder: str) -> None:
    import torchett as ett

    os.environ["ETT_RUNS"] = folder
    assert ett.init(job="bench") is not None


def ett_steps(folder: str) -> Calls:
    """for batch in ett.steps(loader)"""
    import torchett as ett

    _init(folder)
    plain = itertools.repeat(None)
    steps = ett.steps(itertools.repeat(None))

    def record(at: int, n: int) -> None:
        for _ in itertools.islice(steps, n):
            pass

    def bare(at: int, n: int) -> None:
        for _ in itertools.islice(plain, n):
            pass

    return Calls(record, bare, lag=1)


def ett_step(folder: str) -> Calls:
    """with ett.step(i)"""
    import torchett as ett

    _init(folder)

    def record(at: int, n: int) -> None:
        for i in range(at, at + n):
            with ett.step(i):
                pass

    return Calls(record, turn)


def ett_stage(folder: str) -> Calls:
    """with ett.stage("x-probe")"""
    import torchett as ett

    _init(folder)

    def record(at: int, n: int) -> None:
        for _ in range(at, at + n):
            with ett.stage("x-probe"):
                pass

    return Calls(record, turn)


# ml-goodput-measurement ------------------------------------------------------------------------


class Nowhere:
    """Stands in for its _CloudLogger: takes entries and forgets them."""

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        pass


class JsonLines:
    """Stands in for its _CloudLogger: a line of JSON an entry, flushed to the kernel or not."""

    def __init__(self, folder: str, flush: bool) -> None:
        self._file = (Path(folder) / "goodput.jsonl").open("w")
        self._flush = flush

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        if self._flush:
            self._file.flush()


def _goodput_steps(logger: Any) -> Calls:
    """GoodputRecorder.record_step_start_time(step), its one call a step."""
    from ml_goodput_measurement.src.goodput import GoodputRecorder

    recorder = GoodputRecorder("bench", "bench", True, logger)

    def record(at: int, n: int) -> None:
        for i in range(at, at + n):
            recorder.record_step_start_time(i)

    return Calls(record, turn)


def goodput_nowhere(folder: str) -> Calls:
    """ml-goodput, no-op back end"""
    return _goodput_steps(Nowhere())


def goodput_jsonl(folder: str) -> Calls:
    """ml-goodput, JSONL file"""
    return _goodput_steps(JsonLines(folder, flush=True))


def goodput_buffered(folder: str) -> Calls:
    """ml-goodput, JSONL file, not flushed"""
    return _goodput_steps(JsonLines(folder, flush=False))


def goodput_async(folder: str) -> Calls:
    """ml-goodput, asynchronous path

    Its own _CloudLogger on google-cloud-logging's background thread; only the remote call at the
    very end (LoggingServiceV2.write_log_entries) is a line appended to a file instead: what the
    file holds has left the process. So neither gRPC nor the network is in its figure.
    """
    import google.cloud.logging
    from google.auth.credentials import AnonymousCredentials
    from ml_goodput_measurement.src.goodput import GoodputRecorder

    file = (Path(folder) / "goodput.jsonl").open("w")

    class Offline:
        def write_entries(self, entries: list[dict[str, Any]], **_: Any) -> None:
            for entry in entries:
                file.write(json.dumps(entry["jsonPayload"]) + "\n")
            file.flush()

    def client() -> Any:
        made = real(project="bench", credentials=AnonymousCredentials(), _use_grpc=False)
        made._logging_api = Offline()
        return made

    real = google.cloud.logging.Client
    with mock.patch.object(google.cloud.logging, "Client", client):
        recorder = GoodputRecorder("bench", "bench", True)

    def record(at: int, n: int) -> None:
        for i in range(at, at + n):
            recorder.record_step_start_time(i)

    return Calls(record, turn, recorder.flush)


def goodput_span(folder: str) -> Calls:
    """ml-goodput, custom badput event, JSONL file

    record_custom_badput_event_start_time and …_end_time: its way to time a stretch of the loop.
    """
    from ml_goodput_measurement.src.goodput import GoodputRecorder

    recorder = GoodputRecorder("bench", "bench", True, JsonLines(folder, flush=True))

    def record(at: int, n: int) -> None:
        for _ in range(at, at + n):
            recorder.record_custom_badput_event_start_time(None, "probe")
            recorder.record_custom_badput_event_end_time(None, "probe")

    return Calls(record, turn)


# nv-one-logger ---------------------------------------------------------------------------------


def _one_logger(folder: str, every_span: bool) -> Any:
    """Set up as in its docs/example.py, with its FileExporter; the module of its callbacks."""
    from nv_one_logger.api.config import LoggerConfig, OneLoggerConfig
    from nv_one_logger.exporter.file_exporter import FileExporter
    from nv_one_logger.recorder.default_recorder import ExportCustomizationMode
    from nv_one_logger.training_telemetry.api import callbacks
    from nv_one_logger.training_telemetry.api.config import TrainingTelemetryConfig
    from nv_one_logger.training_telemetry.api.spans import StandardTrainingJobSpanName
    from nv_one_logger.training_telemetry.api.training_telemetry_provider import (
        TrainingTelemetryProvider,
    )

    config = OneLoggerConfig(
        application_name="bench",
        world_size_or_fn=1,
        session_tag_or_fn="bench",
        # Its own messages would lie in the folder this was called from.
        logger_config=LoggerConfig(
            log_file_path_for_info=os.devnull, log_file_path_for_err=os.devnull
        ),
    )
    provider = TrainingTelemetryProvider.instance().with_base_config(config)
    provider = provider.with_exporter(FileExporter(file_path=Path(folder) / "one.jsonl"))
    if every_span:
        # All but one that does not occur: it refuses an empty list, and EXPORT_ALL_SPANS too.
        provider = provider.with_export_customization(
            ExportCustomizationMode.BLACKLIST_SPANS, [StandardTrainingJobSpanName.TESTING_LOOP]
        )
    provider.configure_provider()
    callbacks.on_app_start()
    training = TrainingTelemetryConfig(perf_tag_or_fn="bench", global_batch_size_or_fn=32)
    provider.set_training_telemetry_config(training)
    callbacks.on_train_start(train_iterations_start=0)
    return callbacks


def _one_logger_steps(folder: str, every_span: bool) -> Calls:
    """on_training_single_iteration_start() and …_end(), its two calls a step."""
    callbacks = _one_logger(folder, every_span)
    start = callbacks.on_training_single_iteration_start
    end = callbacks.on_training_single_iteration_end

    def record(at: int, n: int) -> None:
        for _ in range(at, at + n):
            start()
            end()

    return Calls(record, turn)


def one_logger(folder: str) -> Calls:
    """nv-one-logger, file exporter (every 50th step)"""
    return _one_logger_steps(folder, every_span=False)


def one_logger_every(folder: str) -> Calls:
    """nv-one-logger, file exporter, every step"""
    return _one_logger_steps(folder, every_span=True)


def one_logger_span(folder: str) -> Calls:
    """nv-one-logger, timed_span, file exporter"""
    _one_logger(folder, every_span=True)
    from nv_one_logger.api.timed_span import timed_span
    from nv_one_logger.training_telemetry.api.spans import StandardTrainingJobSpanName

    # A name of its own, as plain text, is a TypeError on Python 3.11.
    name = StandardTrainingJobSpanName.MODEL_FORWARD

    def record(at: int, n: int) -> None:
        for _ in range(at, at + n):
            with timed_span(name):
                pass

    return Calls(record, turn)


# Measuring -------------------------------------------------------------------------------------

# Each with the number of calls in a burst: enough for a second or so of CPU.
STEPS: dict[Callable[[str], Calls], int] = {
    ett_steps: 1_000_000,
    ett_step: 1_000_000,
    goodput_nowhere: 500_000,
    goodput_jsonl: 200_000,
    goodput_buffered: 200_000,
    goodput_async: 30_000,
    one_logger: 20_000,
    one_logger_every: 20_000,
}
SPANS: dict[Callable[[str], Calls], int] = {
    ett_stage: 300_000,
    goodput_span: 100_000,
    one_logger_span: 20_000,
}
CONTENDERS = {make.__name__: make for make in (*STEPS, *SPANS)}


def cost(name: str, folder: str, calls: int, paced: int) -> Row:
    """CPU of one call: the median batch and the mean in a burst, and the mean when paced."""
    clock = time.process_time_ns
    one = CONTENDERS[name](folder)

    def batches(loop: Loop, at: int, count: int) -> list[int]:
        took = [0] * count
        for k in range(count):
            began = clock()
            loop(at + k * BATCH, BATCH)
            took[k] = clock() - began
        return took

    def slowly(loop: Loop, at: int) -> int:
        began = clock()
        for i in range(at, at + paced):
            loop(i, 1)
            time.sleep(PACE_S)
        one.finish()
        return clock() - began

    warm = 10 * BATCH
    one.record(0, warm)
    one.finish()
    bare = batches(one.bare, 0, 2000)
    began = clock()
    took = batches(one.record, warm, calls // BATCH)
    one.finish()
    whole = clock() - began
    at = warm + calls // BATCH * BATCH
    # In turn, a few times: what a sleep itself costs drifts with the machine's load.
    turns = range(at, at + 5 * paced, paced)
    slow = median(slowly(one.record, i) - slowly(one.bare, i) for i in turns)
    return {
        "cpu": (median(took) - median(bare)) / BATCH / 1e3,
        "mean": (whole / len(took) - median(bare)) / BATCH / 1e3,
        "paced": slow / paced / 1e3,
        "calls": at + len(turns) * paced,
    }


def die(name: str, folder: str, calls: int) -> Row:
    """Record that many steps and be killed."""
    one = CONTENDERS[name](folder)
    one.record(0, calls + one.lag)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def found_steps(name: str, folder: Path) -> int:
    """How many steps a reader finds in what a process left behind."""
    if name.startswith("ett"):
        from torchett.runs.reader import RunReader

        rows = RunReader(folder / "bench").poll().history().rows
        return int(rows.count[rows.is_step].sum())
    text = "".join(path.read_text() for path in folder.iterdir())
    if name.startswith("goodput"):
        return sum("step_start_time" in line for line in text.split("\n")[:-1])
    seen = [json.loads(line) for line in text.split("\n")[:-1]]
    if name == "one_logger_every":
        ended = [e for e in seen if e["type"] in ("complete", "stop")]
        return sum(e["name"] == "training_single_iteration" for e in ended)
    updates = [e["event"]["attributes"] for e in seen if e["type"] == "event"]
    return max((update.get("num_iterations", 0) for update in updates), default=0)


def survives(name: str, calls: list[int]) -> str:
    """Whether a reader finds all the steps of processes that were killed right after the last."""
    lost = 0
    for count in calls:
        with tempfile.TemporaryDirectory() as folder:
            args = json.dumps({"name": name, "folder": folder, "calls": count})
            command = [sys.executable, __file__, "--child", "die", args]
            done = subprocess.run(command, capture_output=True)
            if done.returncode != -signal.SIGKILL:
                return "–"
            lost += count - found_steps(name, Path(folder))
    return "yes" if lost == 0 else f"lost {lost} of {sum(calls)}"


def measured(name: str, calls: int, paced: int) -> Row:
    """One round of one contender."""
    with tempfile.TemporaryDirectory() as folder:
        row = fresh(cost, name=name, folder=folder, calls=calls, paced=paced)
        if "error" not in row:
            files = (path for path in Path(folder).rglob("*") if path.is_file())
            row["bytes"] = sum(path.stat().st_size for path in files) / row["calls"] * 1e6
            if name in ("ett_steps", "ett_step"):  # cheap is no good if it is not kept
                row["kept"] = found_steps(name, Path(folder)) / row["calls"]
    if name in ("goodput_nowhere", "goodput_async"):
        row["bytes"] = None  # it keeps nothing here
    return row


def filesystem() -> str:
    """The kind of file system the records are written to."""
    where = Path(tempfile.gettempdir()).resolve()
    best = ("", "?")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if where.is_relative_to(mount):
            best = max(best, (mount, kind))
    return f"records on {best[1]}"


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=None, help="rounds (3; with --quick 1)")
    args = parser.parse_args()
    rounds = args.rounds or (1 if args.quick else 3)
    share, paced, deaths = (10, 50, [1333]) if args.quick else (1, 200, [1, 333, 5000])
    wanted = {**STEPS, **SPANS}
    if args.quick:  # importing the others takes longer than all the rest
        wanted = {make: wanted[make] for make in (ett_steps, ett_step, goodput_jsonl, ett_stage)}
    seen: dict[str, list[Row]] = {make.__name__: [] for make in wanted}
    for _ in range(rounds):
        for make, calls in wanted.items():
            seen[make.__name__].append(measured(make.__name__, calls // share, paced))
    rows: dict[str, Row] = {}
    for make in wanted:
        name = make.__name__
        row = medians(seen[name])
        row["what"] = (make.__doc__ or name).splitlines()[0]
        if make in STEPS and "error" not in row:
            row["survives"] = survives(name, deaths)
        rows[name] = row

    micro = "{:.2f}".format
    size = "{:,.0f} kB".format
    columns = [
        Column("what", "recorded by"),
        Column("cpu", "burst, median µs", micro),
        Column("mean", "burst, mean µs", micro),
        Column("paced", "paced, mean µs", micro),
        Column("calls", "calls", "{:,.0f}".format),
        Column("bytes", "kept per million", lambda n: size(n / 1e3)),
        Column("survives", "survives SIGKILL"),
    ]
    report = Report("record", facts={"disk": filesystem(), "rounds": f"rounds: {rounds}"})
    report.sheets = [
        Sheet("one step", columns, [rows[m.__name__] for m in wanted if m in STEPS]),
        Sheet("one span", columns[:-1], [rows[m.__name__] for m in wanted if m in SPANS]),
    ]
    report.bars = bars(rows, seen)
    report.show(args.json)


def bars(rows: dict[str, Row], seen: dict[str, list[Row]]) -> list[Bar]:
    step = max(rows["ett_steps"]["cpu"], rows["ett_step"]["cpu"])
    span = rows["ett_stage"]["cpu"]
    lost = [rows[name]["survives"] for name in ("ett_steps", "ett_step")]
    kept = [row["kept"] for name in ("ett_steps", "ett_step") for row in seen[name]]
    whole = all(abs(share - 1) < 1e-4 for share in kept)  # `ett.steps` may not end its last step

    def under(key: str) -> float | None:
        """How many times under the peer's JSONL path: by round, the dearer of our two ways."""
        theirs = seen["goodput_jsonl"]
        if any("error" in row for row in theirs):
            return None
        ours = zip(seen["ett_steps"], seen["ett_step"], strict=True)
        dearer = [max(a[key], b[key]) for a, b in ours]
        return float(median(t[key] / o for t, o in zip(theirs, dearer, strict=True)))

    times = under("cpu")
    return [
        bar("CPU per step, median", "≤ 1 µs", step, step <= 1, "µs"),
        bar("CPU per span, median", "≤ 5 µs", span, span <= 5, "µs"),
        bar("under ml-goodput's JSONL path, median", "≥ 4 ×", times, (times or 0) >= 4, "×"),
        bar("under it in the mean, folding included", "no promise", under("mean"), None, "×"),
        Bar("steps of the bursts in the record", "all", f"{100 * min(kept):.2f} %", whole),
        Bar("steps found after SIGKILL", "all", ", ".join(lost), lost == ["yes", "yes"]),
    ]


if __name__ == "__main__":
    serve([cost, die])
    main()
