"""A real Slurm on this machine, to try things on: nodes with GPUs that are not there.

    sudo apt-get install slurm-wlm munge slurmdbd mariadb-server
    python examples/slurm/cluster.py FOLDER                 # until Ctrl-C
    export SLURM_CONF=FOLDER/slurm.conf; sinfo              # in another shell

munged, mariadbd, slurmdbd, slurmctld and one slurmd a node run as root on loopback and free ports.
Accounts: `team`. QOS: `besteffort` is preempted by `prod`. With --preemption slurm by Slurm itself
(the youngest job first, 20 s of grace); with --preemption none by nobody, unless `ett slurm guard`
runs.
"""

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

PROGRAMS = {
    "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "sbatch": "slurm-wlm", "munged": "munge",
    "slurmdbd": "slurmdbd", "mariadbd": "mariadb-server", "mariadb-install-db": "mariadb-server",
}  # fmt: skip
SLURM = """\
ClusterName=ettlab
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={slurmctld}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={base}/munge.socket
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool-%n
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd-%n.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
GresTypes=gpu
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0,\
preempt_youngest_first,preempt_reorder_count=3
PriorityType=priority/multifactor
PriorityWeightQOS=10000
PreemptType={preempt}
PreemptMode={mode}
JobRequeue=1
KillWait=5
InactiveLimit=0
MinJobAge=600
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePass={base}/munge.socket
AccountingStoragePort={slurmdbd}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=all Nodes=n[1-{count}] Default=YES MaxTime=1:00:00 State=UP
"""
DATABASE_DAEMON = """\
AuthType=auth/munge
AuthInfo=socket={base}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={slurmdbd}
SlurmUser=root
LogFile={base}/slurmdbd.log
PidFile={base}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass=x
StorageLoc=slurm_acct_db
"""
DATABASE = """\
[mysqld]
user=root
datadir={base}/db
socket={base}/db/my.sock
port={database}
bind-address=127.0.0.1
skip-name-resolve
skip-log-bin
innodb_buffer_pool_size=64M
innodb_log_file_size=16M
innodb_flush_log_at_trx_commit=0
innodb_flush_method=nosync
innodb_doublewrite=0
innodb_lock_wait_timeout=900
"""
SQL = """
create database slurm_acct_db;
create user 'slurm'@'127.0.0.1' identified by 'x';
grant all on slurm_acct_db.* to 'slurm'@'127.0.0.1';
"""
BY_SLURM = {"preempt": "preempt/qos", "mode": "REQUEUE"}
BY_NOBODY = {"preempt": "preempt/none", "mode": "OFF"}


def lacking() -> str | None:
    """What is missing to run a cluster here, in one line; None if nothing is."""
    if os.geteuid() != 0:
        return "a Slurm of one's own needs root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    packages = {pack for name, pack in PROGRAMS.items() if shutil.which(name, path=path) is None}
    return (
        f"Slurm is not installed: apt-get install {' '.join(sorted(packages))}"
        if packages
        else None
    )


class Cluster:
    """One cluster in one folder; `with` starts it and takes everything down again."""

    def __init__(
        self, base: Path, *, nodes: int = 4, gpus: int = 8, preemption: str = "slurm"
    ) -> None:
        self.base, self.nodes, self.gpus = base.absolute(), nodes, gpus
        self.by_slurm = preemption == "slurm"
        self.env = os.environ | {
            "SLURM_CONF": str(self.base / "slurm.conf"),
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "SLURM_TIME_FORMAT": "%s",
        }
        self._stack = ExitStack()

    def __enter__(self) -> "Cluster":
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, *command: str) -> str:
        """What a command of Slurm's prints."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise RuntimeError(f"{' '.join(command)}: {said}")
        return done.stdout

    # Behind it -------------------------------------------------------------------------------

    def _start(self, stack: ExitStack) -> None:
        for name in ("state", "dev", *(f"spool-n{i + 1}" for i in range(self.nodes))):
            (self.base / name).mkdir(parents=True, exist_ok=True)
        self._write_settings()
        self._daemon(
            stack, "munged", "--foreground", "--force", f"--key-file={self.base}/munge.key",
            f"--socket={self.base}/munge.socket", f"--pid-file={self.base}/munged.pid",
            f"--log-file={self.base}/munged.log", f"--seed-file={self.base}/munge.seed",
        )  # fmt: skip
        self._start_database(stack)
        self._daemon(stack, "slurmdbd", "-D")
        _wait("slurmdbd", lambda: "Cluster" in self.run("sacctmgr", "-P", "show", "cluster"))
        self.run("sacctmgr", "-i", "add", "cluster", "ettlab")
        self._add_accounts()
        self._daemon(stack, "slurmctld", "-D", "-c")
        for node in range(self.nodes):
            self._daemon(stack, "slurmd", "-D", "-N", f"n{node + 1}")
        stack.callback(self._end_jobs)
        _wait(
            "nodes", lambda: self.run("sinfo", "-h", "-o", "%D %t").strip() == f"{self.nodes} idle"
        )

    def _end_jobs(self) -> None:
        """Before the daemons end: what a job started would outlive them."""
        try:
            self.run("scancel", "--user=root")
            _wait("jobs", lambda: not self.run("squeue", "-h", "-t", "R,CG"), seconds=15)
        except RuntimeError as error:
            print(f"cluster: {error}", file=sys.stderr)

    def _write_settings(self) -> None:
        base = self.base
        free = _free_ports(3 + self.nodes)
        ports = dict(zip(("slurmctld", "slurmdbd", "database"), free[:3], strict=True))
        lines = "\n".join(
            f"NodeName=n{i + 1} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=16"
            f" Gres=gpu:{self.gpus} RealMemory=2000 State=UNKNOWN"
            for i, port in enumerate(free[3:])
        )
        values: dict[str, Any] = {"base": base, "nodes": lines, "count": self.nodes} | ports
        values |= BY_SLURM if self.by_slurm else BY_NOBODY
        devices = f"{base}/dev/gpu[0-{self.gpus - 1}]"
        (base / "slurm.conf").write_text(SLURM.format(**values))
        (base / "my.cnf").write_text(DATABASE.format(**values))
        (base / "slurmdbd.conf").write_text(DATABASE_DAEMON.format(**values))
        (base / "slurmdbd.conf").chmod(0o600)
        (base / "cgroup.conf").write_text(
            "CgroupAutomount=no\nConstrainCores=no\nIgnoreSystemd=yes\n"
        )
        (base / "gres.conf").write_text(
            f"AutoDetect=off\nNodeName=n[1-{self.nodes}] Name=gpu File={devices}\n"
        )
        for number in range(self.gpus):
            os.mknod(base / "dev" / f"gpu{number}", 0o20666, os.makedev(1, 3))
        (base / "munge.key").write_bytes(os.urandom(128))
        (base / "munge.key").chmod(0o400)

    def _start_database(self, stack: ExitStack) -> None:
        base = self.base
        (base / "db").mkdir()
        subprocess.run(
            ["mariadb-install-db", f"--defaults-file={base}/my.cnf", "--skip-test-db", "--force",
             "--auth-root-authentication-method=normal"],
            check=True, capture_output=True,
        )  # fmt: skip
        self._daemon(stack, "mariadbd", f"--defaults-file={base}/my.cnf")
        client = ("mariadb", f"--socket={base}/db/my.sock", "-uroot", "-e")
        _wait("mariadbd", lambda: bool(self.run(*client, "select 1")))
        self.run(*client, SQL)

    def _add_accounts(self) -> None:
        preempts = ["Preempt=besteffort"] if self.by_slurm else []
        mode = ["PreemptMode=requeue", "GraceTime=20"] if self.by_slurm else []
        for command in (
            ("qos", "besteffort", "Priority=1", *mode),
            ("qos", "prod", "Priority=100", *preempts),
            ("account", "team"),
            ("user", "root", "account=team", "qos=prod,besteffort", "defaultqos=besteffort"),
        ):
            self.run("sacctmgr", "-i", "add", *command)

    def _daemon(self, stack: ExitStack, *command: str) -> None:
        """Start a daemon in the foreground; it ends, at the latest, with this cluster."""
        with open(self.base / f"{command[0]}.out", "ab") as out:
            # Where this process is killed, its daemons are told to end, too.
            bound = ("setpriv", "--pdeathsig", "TERM", *command)
            running = subprocess.Popen(
                bound, env=self.env, stdout=out, stderr=out, start_new_session=True
            )
        stack.callback(_end, running)


def _end(running: "subprocess.Popen[bytes]") -> None:
    running.send_signal(signal.SIGTERM)
    try:
        running.wait(10)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()


def _wait(what: str, done: Callable[[], bool], seconds: float = 180.0) -> None:
    until, error = time.monotonic() + seconds, ""
    while time.monotonic() < until:
        try:
            if done():
                return
        except RuntimeError as said:
            error = str(said)
        time.sleep(0.1)
    raise RuntimeError(f"{what}: not there after {seconds:g} s: {error}")


def _free_ports(count: int) -> list[int]:
    """Ports below those that the kernel gives to connections: none is taken before its daemon."""
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 1_000):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"expected {count} free ports from 20000 to 32000, found {len(found)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="an empty folder for settings, logs and state")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=8, help="of a node")
    parser.add_argument("--preemption", choices=("slurm", "none"), default="slurm")
    options = parser.parse_args()
    if (said := lacking()) is not None:
        sys.exit(f"cluster: {said}")
    options.folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(
        options.folder, nodes=options.nodes, gpus=options.gpus, preemption=options.preemption
    )
    for number in (signal.SIGTERM, signal.SIGINT):  # the latter is ignored behind an `&`
        signal.signal(number, signal.default_int_handler)
    try:
        with cluster:
            print(f"export SLURM_CONF={cluster.env['SLURM_CONF']}", flush=True)
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
