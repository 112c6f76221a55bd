"""Slurm as the guard sees it: jobs and nodes read from its commands, and what is asked of it.

squeue and sinfo are asked once a round for everything. Nothing here decides.
"""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from torchett.model.beacon import Beacon, from_slurm_comment
from torchett.model.errors import RunError

_ANSWER_S = 20.0
_JOB_FIELDS = (
    "JobID", "State", "QOS", "Account", "UserName", "Partition", "Reason", "tres-alloc",
    "NumNodes", "tres-per-node", "StartTime", "SubmitTime", "RestartCnt", "Requeue",
    "PriorityLong", "NodeList", "Comment",
)  # fmt: skip
_NODE_FIELDS = ("NodeList", "Gres", "GresUsed", "StateLong", "PartitionName")
_GPUS = re.compile(r"gpu(?::[^:,(=]+)?[:=](\d+)")
_USABLE = ("idle", "mixed", "allocated", "completing")
_BOUNDS = re.compile(r"([^\[,]*)(?:\[([^\]]*)\])?([^,]*)(?:,|$)")
_NEVER_S = 10**12  # a time that Slurm does not know yet


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job in Slurm's queue, or one that has just left it."""

    number: int
    state: str
    qos: str
    account: str
    user: str
    partition: str
    reason: str
    gpus: int  # allocated, else asked for
    nodes: int
    per_node: int | None  # GPUs of each node, where it was asked for like that
    start_s: float
    submit_s: float
    restarts: int
    requeues: bool
    priority: int
    node_names: tuple[str, ...]
    beacon: Beacon | None

    @property
    def runs(self) -> bool:
        return self.state == "RUNNING"

    @property
    def waits(self) -> bool:
        return self.state == "PENDING"

    @property
    def holds(self) -> bool:
        """Whether it has GPUs."""
        return self.state in ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that can take jobs."""

    name: str
    gpus: int
    used: int
    partitions: frozenset[str]

    @property
    def free(self) -> int:
        return max(0, self.gpus - self.used)


class Slurm:
    """Slurm's commands. RunError where one fails."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = {**env, "SLURM_TIME_FORMAT": "%s"}

    def jobs(self) -> dict[int, QueuedJob]:
        """All jobs that wait, run or leave."""
        return parse_jobs(self._run("squeue", "-h", "-a", "-O", _asked(_JOB_FIELDS)))

    def job(self, number: int) -> QueuedJob | None:
        """This job, also if it ended a short time ago; None if Slurm knows it no more."""
        try:
            said = self._run(
                "squeue", "-h", "-a", "-t", "all", "-j", str(number), "-O", _asked(_JOB_FIELDS)
            )
        except RunError:
            return None
        return parse_jobs(said).get(number)

    def nodes(self) -> dict[str, Node]:
        """The nodes that can take jobs."""
        return parse_nodes(self._run("sinfo", "-h", "-a", "-N", "-O", _asked(_NODE_FIELDS)))

    def has_steps(self, number: int) -> bool:
        """Whether srun started something in this job: it can be signalled without its script."""
        said = self._run("squeue", "-h", "-s", "-j", str(number), "-o", "%i")
        return any(line.rpartition(".")[2].isdigit() for line in said.split())

    def signal(self, number: int, name: str) -> None:
        self._run("scancel", f"--signal={name}", str(number))

    def requeue(self, number: int) -> None:
        self._run("scontrol", "requeue", str(number))

    def start_now(self, number: int) -> None:
        """End the wait that Slurm imposes on a requeued job."""
        self._run("scontrol", "update", f"jobid={number}", "StartTime=now")

    def reserve(self, name: str, job: QueuedJob, nodes: tuple[str, ...]) -> None:
        """Keep other jobs from starting on these nodes, and bind the job to them.

        A reservation that ends kills the jobs in it, so this one has no near end: it goes when
        it is deleted, or by itself after two minutes without a job.
        """
        self._run(
            "scontrol", "create", "reservation", f"ReservationName={name}", "StartTime=now",
            "Duration=UNLIMITED", f"Users={job.user}", f"Nodes={','.join(nodes)}",
            "Flags=IGNORE_JOBS,PURGE_COMP=00:02:00",
        )  # fmt: skip
        self._run("scontrol", "update", f"jobid={job.number}", f"ReservationName={name}")

    def unreserve(self, name: str, number: int) -> None:
        """Free the nodes; the job goes on, or waits on as if nothing had been reserved."""
        try:
            self._run("scontrol", "update", f"jobid={number}", "ReservationName=")
        except RunError:
            pass  # the job is over
        self._run("scontrol", "delete", f"ReservationName={name}")

    def reservations(self) -> tuple[str, ...]:
        said = self._run("scontrol", "show", "reservation", "-o")
        return tuple(re.findall(r"ReservationName=(\S+)", said))

    def _run(self, *command: str) -> str:
        shown = " ".join(command[:3])
        try:
            done = subprocess.run(
                command, env=self._env, capture_output=True, text=True, errors="replace",
                timeout=_ANSWER_S,
            )  # fmt: skip
        except FileNotFoundError:
            raise RunError(f"{command[0]}: expected Slurm's commands on the path") from None
        except subprocess.TimeoutExpired:
            raise RunError(f"{shown}: no answer within {_ANSWER_S:g} s") from None
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())
            raise RunError(f"{shown}: {said or f'exit code {done.returncode}'}")
        return done.stdout


def parse_jobs(text: str) -> dict[int, QueuedJob]:
    """The jobs that squeue printed, by number."""
    found = {}
    for line in text.splitlines():
        cells = line.split("|", len(_JOB_FIELDS) - 1)
        row = dict(zip(_JOB_FIELDS, cells, strict=False))
        if len(row) < len(_JOB_FIELDS) or not row["JobID"].isdigit():
            continue
        number, total = int(row["JobID"]), _gpus(row["tres-alloc"])
        comment = row["Comment"].strip()
        found[number] = QueuedJob(
            number=number,
            state=row["State"],
            qos=row["QOS"],
            account=row["Account"],
            user=row["UserName"],
            partition=row["Partition"],
            reason=row["Reason"],
            gpus=total,
            nodes=max(1, int(row["NumNodes"]) if row["NumNodes"].isdigit() else 1),
            per_node=_gpus(row["tres-per-node"]) or None,
            start_s=_seconds(row["StartTime"]),
            submit_s=_seconds(row["SubmitTime"]),
            restarts=int(row["RestartCnt"]) if row["RestartCnt"].isdigit() else 0,
            requeues=row["Requeue"] not in ("0", "no", "No"),
            priority=int(row["PriorityLong"]) if row["PriorityLong"].isdigit() else 0,
            node_names=tuple(node_names(row["NodeList"])),
            beacon=from_slurm_comment(str(number), max(1, total), comment),
        )
    return found


def parse_nodes(text: str) -> dict[str, Node]:
    """The usable nodes that sinfo printed, one line for each partition of each node."""
    found: dict[str, Node] = {}
    for line in text.splitlines():
        row = dict(zip(_NODE_FIELDS, line.split("|"), strict=False))
        name = row.get("NodeList", "")
        if not name or row["StateLong"].rstrip("+") not in _USABLE:
            continue
        known = found[name].partitions if name in found else frozenset()
        found[name] = Node(
            name=name,
            gpus=_gpus(row["Gres"]),
            used=_gpus(row["GresUsed"]),
            partitions=known | {row["PartitionName"].rstrip("*")},
        )
    return found


def node_names(text: str) -> list[str]:
    """The names in Slurm's short form: gpu[01-03,7],cpu1."""
    names: list[str] = []
    for head, numbers, tail in _BOUNDS.findall(text):
        if not numbers:
            names += [head + tail] if head + tail not in ("", "(null)") else []
            continue
        for part in numbers.split(","):
            low, _, high = part.partition("-")
            if low.isdigit() and (high or low).isdigit():
                for number in range(int(low), int(high or low) + 1):
                    names.append(f"{head}{number:0{len(low)}}{tail}")
    return names


def _asked(fields: tuple[str, ...]) -> str:
    return ",".join(f"{name}:|" for name in fields[:-1]) + f",{fields[-1]}:"


def _gpus(text: str) -> int:
    """GPUs of all kinds: gres/gpu=8, gres:gpu:a100:4(S:0-1), gpu:2,gpu:h100:2."""
    if "gres/gpu=" in text:  # the total stands beside the kinds
        return int(re.findall(r"gres/gpu=(\d+)", text)[0])
    return sum(int(count) for count in _GPUS.findall(text))


def _seconds(text: str) -> float:
    return float(text) if text.isdigit() else float(_NEVER_S)
