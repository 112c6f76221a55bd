"""Jobs written by hand, as input for advice."""

from pathlib import Path

from torchett.ledger.history import History
from torchett.runs import events


class JobText:
    """A job in events/1, line by line; times in seconds."""

    def __init__(self, ranks: int = 1) -> None:
        self.ranks = ranks
        self.lines = [f'{{"event":"job","format":"events/1","job":"job","ranks":{ranks}}}']
        self.step = 0

    def start(self, attempt: int, t: float) -> "JobText":
        self.lines.append(f'{{"event":"attempt_start","attempt":{attempt},"t":{t}}}')
        return self

    def end(self, attempt: int, t: float, outcome: str, cause: str = "") -> "JobText":
        said = f',"cause":"{cause}"' if cause else ""
        self.lines.append(
            f'{{"event":"attempt_end","attempt":{attempt},"t":{t},"outcome":"{outcome}"{said}}}'
        )
        return self

    def span(self, attempt: int, account: str, t0: float, t1: float) -> "JobText":
        for rank in range(self.ranks):
            self.lines.append(
                f'{{"event":"span","attempt":{attempt},"rank":{rank},"account":"{account}",'
                f'"t0":{t0},"t1":{t1}}}'
            )
        return self

    def steps(self, attempt: int, first: int, count: int, t0: float, each: float) -> "JobText":
        for i in range(count):
            for rank in range(self.ranks):
                begin = round(t0 + i * each, 6)
                self.lines.append(
                    f'{{"event":"step","attempt":{attempt},"rank":{rank},"step":{first + i},'
                    f'"t0":{begin},"t1":{round(begin + each, 6)}}}'
                )
        return self

    def saved(self, attempt: int, step: int, t: float) -> "JobText":
        self.lines.append(
            f'{{"event":"checkpoint","attempt":{attempt},"step":{step},"durable":{t}}}'
        )
        return self

    def write(self, path: Path) -> Path:
        path.write_text("\n".join(self.lines) + "\n")
        return path

    def history(self, folder: Path) -> History:
        return events.read(self.write(folder / "job.jsonl"))


def slow_to_start() -> JobText:
    """100 s, of which 10 s import, 30 s compile, 50 s train, 10 s end."""
    job = JobText().start(0, 0).span(0, "imports", 0, 10).span(0, "pt2_compile", 10, 40)
    return job.steps(0, 0, 500, 40, 0.1).end(0, 100, "success")


def often_killed() -> JobText:
    """Two ranks, three failures that lose 10 s of steps each, and a save every 20 s."""
    job = JobText(ranks=2)
    t, step = 0.0, 0
    for attempt in range(4):
        job.start(attempt, t).span(attempt, "imports", t, t + 5)
        t += 5
        for _ in range(3):
            job.steps(attempt, step, 20, t, 1.0).span(attempt, "checkpoint_blocked", t + 20, t + 21)
            t, step = t + 21, step + 20
            job.saved(attempt, step - 1, t + 0.5)
        if attempt < 3:
            job.steps(attempt, step, 10, t, 1.0).end(attempt, t + 11, "failed", "SIGKILL")
            t += 11
        else:
            job.steps(attempt, step, 10, t, 1.0).end(attempt, t + 10, "success")
    return job
