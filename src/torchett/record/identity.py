"""Who am I: the job, attempt and rank of this process, from its environment alone.

set by            job                    attempt                       rank, ranks
ett run           ETT_RUN, ETT_JOB       ETT_ATTEMPT, ETT_RESTART      –
torchrun          TORCHELASTIC_RUN_ID    TORCHELASTIC_RESTART_COUNT    RANK, WORLD_SIZE
Slurm (srun)      SLURM_JOB_NAME, _ID    SLURM_RESTART_COUNT           SLURM_PROCID, _NTASKS
Kubernetes        ETT_JOB, JOB_NAME      ETT_ATTEMPT                   JOB_COMPLETION_INDEX,
                                                                       or RANK, WORLD_SIZE
nothing           script and start time  0                             0, 1
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RUNS = "ett-runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Where this process's flight record belongs."""

    job: str
    run: Path
    attempt: int = 0
    restart: int = 0  # of the elastic agent, inside one attempt of the launcher
    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    launched: bool = False  # by `ett run`, which writes down attempts itself


def runs_folder(env: Mapping[str, str]) -> Path:
    """The folder that holds runs: $ETT_RUNS, else ./ett-runs."""
    return Path(env.get("ETT_RUNS") or RUNS)


def safe_name(text: str) -> str:
    """`text` as the name of a folder."""
    return re.sub(r"[^\w.-]+", "-", text).strip(".-") or "job"


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
    slurm = "SLURM_PROCID" in env and not torchrun
    name = job or env.get("ETT_JOB")
    if name is None and torchrun and env["TORCHELASTIC_RUN_ID"] != "none":
        name = f"{script}-{env['TORCHELASTIC_RUN_ID']}"
    if name is None and "SLURM_JOB_ID" in env:
        name = f"{env.get('SLURM_JOB_NAME', script)}-{env['SLURM_JOB_ID']}"
    if name is None:
        name = env.get("JOB_NAME") or f"{script}-{started}"
    name = safe_name(name)

    launched = "ETT_RUN" in env and job is None
    attempt = _whole(env, "ETT_ATTEMPT")
    if attempt is None:
        attempt = _whole(env, "SLURM_RESTART_COUNT") or 0
    restart = _whole(env, "ETT_RESTART")
    if restart is None and torchrun:
        restart = _whole(env, "TORCHELASTIC_RESTART_COUNT")
    if rank is None:
        rank = _whole(env, "RANK")
    if rank is None:
        rank = _whole(env, "SLURM_PROCID" if slurm else "JOB_COMPLETION_INDEX") or 0
    if ranks is None:
        ranks = _whole(env, "WORLD_SIZE") or (_whole(env, "SLURM_NTASKS") if slurm else None)
    return Identity(
        job=name,
        run=Path(env["ETT_RUN"]) if launched else runs_folder(env) / name,
        attempt=attempt,
        restart=restart or 0,
        rank=rank,
        ranks=max(ranks or 1, rank + 1),
        local_rank=_whole(env, "LOCAL_RANK") or _whole(env, "SLURM_LOCALID") or 0,
        launched=launched,
    )


def _whole(env: Mapping[str, str], key: str) -> int | None:
    text = env.get(key, "")
    return int(text) if text.isascii() and text.isdigit() else None
