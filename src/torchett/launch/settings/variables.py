"""Every environment variable that torchett reads: what `docs/settings.md` lists.

yours      set by hand or in a job's script
ours       set by `ett run` for the processes of a job; shown so that you know what they are
"""

from dataclasses import dataclass
from typing import Literal

Group = Literal["job", "place", "levers", "checkpoints", "compile", "tools", "ours"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable."""

    name: str
    group: Group
    does: str
    default: str = ""


def _v(group: Group, name: str, default: str, does: str) -> Variable:
    return Variable(name=name, group=group, default=default, does=does)


VARIABLES: tuple[Variable, ...] = (
    _v("job", "ETT_RUNS", "./ett-runs", "The folder that holds runs."),
    _v("job", "ETT_JOB", "by the script's name", "The job's name, as `ett run --job`."),
    _v("job", "ETT_DISABLE", "0", "1: nothing is recorded or changed in a trainer."),
    _v(
        "job",
        "ETT_WITHOUT",
        "",
        "Levers and targets to turn off, separated by commas; `--without`.",
    ),
    _v("job", "ETT_RINGS", "/dev/shm", "The folder for rings: memory that outlives a killed rank."),
    _v(
        "job",
        "ETT_REQUEUE",
        "1",
        "0: a job that Slurm has warned trains on instead of exiting early.",
    ),
    _v(
        "job",
        "ETT_BEACON_S",
        "10",
        "Seconds between looks at what is saved, for preemption; 0: none.",
    ),
    _v("job", "ETT_LINEAGE", "the scheduler's job", "Which restarts share one restart budget."),
    _v("job", "ETT_GROUP", "REPLICA_GROUP_ID", "The replica group: a run of its own, JOB.group-N."),
    _v("place", "ETT_NODE", "from the scheduler", "This node's number, as `--node`."),
    _v("place", "ETT_NODES", "from the scheduler", "How many nodes run the job, as `--nodes`."),
    _v("place", "ETT_HEAD", "from the scheduler", "HOST[:PORT] of node 0, as `--head`."),
    _v("place", "ETT_SUBMITTED", "from the scheduler", "When it was submitted (Unix time)."),
    _v("place", "ETT_ALLOCATED", "from the scheduler", "When it was allocated (Unix time)."),
    _v("place", "ETT_POD", "the API server's answer", "A file with the pod as JSON (Kubernetes)."),
    _v("place", "ETT_SERVICE_ACCOUNT", "Kubernetes' own path", "The folder of the pod's token."),
    _v("job", "ETT_NODE_TIMEOUT", "4", "Seconds without a beat after which a node counts as lost."),
    _v("levers", "ETT_FAST_EXIT", "1", "0: ranks exit through the interpreter's own teardown."),
    _v(
        "levers",
        "ETT_STANDBY_FORK",
        "1",
        "0: standbys are always spawned, never forked.",
    ),
    _v("levers", "ETT_BYTECODE", "~/.cache/torchett/bytecode", "The folder of bytecode; 0: none."),
    _v("checkpoints", "ETT_GRACE_S", "the scheduler's", "Seconds from a warning to the kill."),
    _v(
        "checkpoints",
        "ETT_PREEMPT_FILE",
        "",
        "A file that appears before a preemption.",
    ),
    _v("compile", "ETT_COMPILE_CACHE", "", "The library of compiled code, as `--compile-cache`."),
    _v("compile", "ETT_COMPILE_CACHE_TIMEOUT", "60", "Seconds to wait for an archive."),
    _v("compile", "ETT_COMPILE_CACHE_QUIET", "5", "Seconds without a compile before publishing."),
    _v("compile", "ETT_COMPILE_WORKLOAD", "the script", "The workload's name in the library."),
    _v("compile", "ETT_CACHE_KEY", "", "The secret that signs archives, 32 characters or more."),
    _v("compile", "ETT_CACHE_KEY_FILE", "", "A file with that secret, which others cannot read."),
    _v("tools", "ETT_FLEET", "./ett-fleet", "The fleet's folder."),
    _v("tools", "ETT_FAILURE_RULES", "", "TOML files with rules of failures, separated by colons."),
    _v("tools", "ETT_LABELS", "", "Labels of the job for the fleet: team=nlp,model=…; `--label`."),
    _v("tools", "ETT_IMAGE", "", "The container image, where it cannot be found out: a label."),
    _v("tools", "ETT_SHIP", "", "The `ett serve` that records are sent to, as `--ship`."),
    _v("tools", "ETT_SHIP_TOKEN", "", "The token for that server."),
    _v("tools", "ETT_SHIP_TOKEN_FILE", "", "A file with that token."),
    _v("tools", "ETT_SHIP_CA", "the system's", "Certificate authorities to trust for that server."),
    _v("tools", "ETT_REGISTRY", "", "The registry of `ett publish`: a folder or a URL."),
    _v("tools", "ETT_SPOOL", "./ett-spool", "The folder of jobs for `ett publish` workers."),
    _v("ours", "ETT_LAUNCHER", "", "The pid of `ett run`."),
    _v(
        "ours",
        "ETT_POLICY_FD",
        "",
        "File descriptor by which the agent requests the restart policy's decision.",
    ),
    _v("ours", "ETT_RUN", "", "The run folder."),
    _v("ours", "ETT_ATTEMPT", "", "The attempt's number."),
    _v("ours", "ETT_RESTART", "", "The agent's restart within the attempt."),
    _v("ours", "ETT_ATTEMPT_BEGAN", "", "When the attempt began, on which clock."),
    _v("ours", "ETT_AGENT_BEGAN", "", "When the elastic agent began."),
    _v("ours", "ETT_BEGAN", "", "When a standby became this rank."),
    _v("ours", "ETT_NOTICE", "", "The file by which ranks learn that the job is to end."),
    _v("ours", "ETT_HANG_TIMEOUT", "", "As `--hang-timeout`."),
    _v("ours", "ETT_PLUGINS", "", "Modules whose `install_plugin()` a process calls first."),
    _v("ours", "ETT_WORKER_PLUGINS", "", "The same for Inductor's compile workers."),
    _v("ours", "ETT_PINS", "", "1: kernels are tuned once (`--pins`)."),
    _v("ours", "ETT_STANDBY", "", "1: standbys are used (`--standby`)."),
    _v("ours", "ETT_STANDBY_DEVICE", "", "1: standbys hold a context on the GPU."),
    _v("ours", "ETT_STANDBY_MODEL", "", "1: standbys compile the model ahead."),
    _v("ours", "ETT_PRELOAD", "", "As `--preload`."),
    _v("ours", "ETT_PLACE", "", "The local rank that a standby is meant for."),
    _v("ours", "ETT_RECORDER", "", "The process that records this rank."),
    _v("ours", "ETT_RANK_PROCESS", "", "Set in the first process of a rank."),
)
