"""Identity: the job, attempt and rank of this process, from its environment alone.

set by            job                    attempt                       rank, ranks
ett run           ETT_RUN, ETT_JOB       ETT_ATTEMPT, ETT_RESTART      –
torchrun          TORCHELASTIC_RUN_ID    TORCHELASTIC_RESTART_COUNT    RANK, WORLD_SIZE
Slurm, by srun    SLURM_JOB_NAME, _ID    SLURM_RESTART_COUNT           SLURM_PROCID,
                  and the step's number                                SLURM_STEP_NUM_TASKS
Kubernetes        ETT_JOB, JOB_NAME      ETT_ATTEMPT                   JOB_COMPLETION_INDEX,
                                                                       or RANK, WORLD_SIZE
nothing           script and start time  0                             0, 1

Slurm's variables are also in the shell of an allocation and in a batch script. A process that was
not started there by srun is a job of its own: SLURM_NTASKS says what srun would start. JOB_NAME is
Kubernetes' only beside the number of a pod: Jenkins sets it for all builds.

A replica group (ETT_GROUP, else REPLICA_GROUP_ID as torchft sets it) is a run of its own beside
those of the job's other groups: gpt.group-0, gpt.group-1.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from os.path import dirname
from pathlib import Path

RUNS = "ett-runs"
GROUP = ".group-"  # between a job's name and that of a replica group
_SPECIAL_STEPS = 0xFFFFFFF0  # from here on: batch, interactive, extern, pending


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Where this process's flight record belongs."""

    job: str
    run: Path
    attempt: int = 0
    restart: int = 0  # the elastic agent's restart, inside one attempt of the launcher
    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    launched: bool = False  # by `ett run`, which writes down attempts itself


# What keepers of snapshots are called: `ett run` ends what a failed trainer left behind, but these.
KEEPER = "ett-keeper"


def runs_folder(env: Mapping[str, str]) -> Path:
    """The folder that holds runs: $ETT_RUNS, else ./ett-runs."""
    return Path(env.get("ETT_RUNS") or RUNS)


def group_suffix(env: Mapping[str, str]) -> str:
    """What the runs of this replica group end in: `.group-1`; nothing without groups."""
    group = env.get("ETT_GROUP") or env.get("REPLICA_GROUP_ID")
    return f"{GROUP}{safe_name(group)}" if group else ""


def safe_name(text: str) -> str:
    """The folder of the job called `text`; two names have two folders.

    Letters and digits of any language and `._-` stay, all else becomes %XX, as in a URL.

    >>> safe_name("größe 7"), safe_name("a/b"), safe_name("../x")
    ('größe%207', 'a%2Fb', '%2E.%2Fx')
    """
    if not text.isascii():
        from unicodedata import normalize  # é is one letter, however it was typed

        text = normalize("NFC", text)
    return re.sub(r"^[.-]|[^\w.-]", _escaped, text) or "job"


def _escaped(found: re.Match[str]) -> str:
    data = found[0].encode(errors="surrogateescape")
    return "".join(f"%{byte:02X}" for byte in data)


def slurm_step(env: Mapping[str, str]) -> int | None:
    """The number of the step in which srun started this process; None if srun did not.

    Shells have SLURM_STEP_ID, too: that of Slurm's own step for interactive use, whose number is
    beyond all that srun counts, and the one that `srun --pty` started. What srun starts from the
    latter inherits SLURM_PTY_PORT, so each of several tasks still counts as a rank.
    """
    step = _whole(env, "SLURM_STEP_ID")
    if step is None or step >= _SPECIAL_STEPS or "SLURM_PROCID" not in env:
        return None
    one_task = _whole(env, "SLURM_STEP_NUM_TASKS") == 1
    return None if "SLURM_PTY_PORT" in env and one_task else step


def identify(
    env: Mapping[str, str],
    *,
    script: str,
    started: str,
    job: str | None = None,
    rank: int | None = None,
    ranks: int | None = None,
) -> Identity:
    """The identity of a process with this environment; arguments win over it.

    `started` names the moment the job began (the same for all its local ranks): it keeps two
    unnamed runs of one script apart.
    """
    torchrun = "TORCHELASTIC_RUN_ID" in env
    step = slurm_step(env)
    slurm = step is not None and not torchrun
    launched = "ETT_RUN" in env and job is None
    suffix = group_suffix(env)
    if launched and suffix and not env["ETT_RUN"].endswith(suffix):
        # One launcher starts several groups: it knows nothing of each group's attempts.
        env = {**env, "ETT_JOB": Path(env["ETT_RUN"]).name, "ETT_RUNS": dirname(env["ETT_RUN"])}
        launched = False
    name = job or env.get("ETT_JOB")
    if name is None and torchrun and env["TORCHELASTIC_RUN_ID"] != "none":
        name = f"{script}-{env['TORCHELASTIC_RUN_ID']}"
    if name is None and step is not None and "SLURM_JOB_ID" in env:
        name = f"{env.get('SLURM_JOB_NAME', script)}-{slurm_name(env)}"
    if name is None:
        name = (env.get("JOB_NAME") if _in_pod(env) else None) or f"{script}-{started}"
    name = name if launched else safe_name(name) + suffix  # the launcher has made it so

    attempt = _whole(env, "ETT_ATTEMPT")
    if attempt is None and step is not None:
        attempt = _whole(env, "SLURM_RESTART_COUNT")
    restart = _whole(env, "ETT_RESTART")
    if restart is None and torchrun:
        restart = _whole(env, "TORCHELASTIC_RESTART_COUNT")
    if rank is None:
        rank = _whole(env, "RANK")
    if rank is None:
        rank = _whole(env, "SLURM_PROCID" if slurm else "JOB_COMPLETION_INDEX") or 0
    if ranks is None:
        ranks = _whole(env, "WORLD_SIZE")
    if not ranks and slurm:
        ranks = _whole(env, "SLURM_STEP_NUM_TASKS") or _whole(env, "SLURM_NTASKS")
    return Identity(
        job=name,
        run=Path(env["ETT_RUN"]) if launched else runs_folder(env) / name,
        attempt=attempt or 0,
        restart=restart or 0,
        rank=rank,
        ranks=max(ranks or 1, rank + 1),
        local_rank=_whole(env, "LOCAL_RANK") or (_whole(env, "SLURM_LOCALID") if slurm else 0) or 0,
        launched=launched,
    )


def slurm_name(env: Mapping[str, str]) -> str:
    """Slurm's number of this job, with the step's if there was one before it: 77, 77.1, 77.2."""
    step = slurm_step(env)
    return env["SLURM_JOB_ID"] + (f".{step}" if step else "")


def _in_pod(env: Mapping[str, str]) -> bool:
    """Whether Kubernetes numbers the processes of this job: then JOB_NAME is its name."""
    operator = "KUBERNETES_SERVICE_HOST" in env and "RANK" in env and "JENKINS_URL" not in env
    return "JOB_COMPLETION_INDEX" in env or (operator and "TORCHELASTIC_RUN_ID" not in env)


def _whole(env: Mapping[str, str], key: str) -> int | None:
    text = env.get(key, "")
    return int(text) if text.isascii() and text.isdigit() else None
