"""The compile cache in one training process.

    first compile begins ──► once per node: find, check and install an archive
    … compiles …
    no compile for a while (or exit) ──► count hits, collect new entries, publish once

Nothing here raises into the script. After an error the process compiles without the cache, with one
line in the log and a note in the record (`compile_cache`).
"""

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from torchett.levers.compile.adapter import caches, winners
from torchett.levers.compile.cache.archive import Entry, RefusedError, contents, pack, unpack
from torchett.levers.compile.cache.environment import Environment, here
from torchett.levers.compile.cache.harvest import harvest, with_another_rank
from torchett.levers.compile.cache.library import Addition, Library
from torchett.levers.compile.cache.node import LoadResult, Node
from torchett.levers.compile.cache.signing import HOW, key_for
from torchett.model.errors import EttError
from torchett.record import api
from torchett.record.clock import now_ns
from torchett.record.plugins import when_imported
from torchett.store import BusyError, StoreError, open_store, write_whole

log = logging.getLogger("torchett")
KIND = "compile_cache"
_ROUNDS = 3  # a job that never stops compiling publishes at most this often


class Session:
    """One process's use of the library at a URL."""

    def __init__(self, url: str, env: Mapping[str, str], *, workload: str | None = None) -> None:
        self.url = url
        self._env = env
        self._workload = workload
        self._wait_s = float(env.get("ETT_COMPILE_CACHE_TIMEOUT", "60"))
        self._quiet_s = float(env.get("ETT_COMPILE_CACHE_QUIET", "5"))
        self._began = False
        self._compiling = False
        self._last_compile = 0.0
        self._watch: threading.Thread | None = None
        self._settling = threading.Lock()
        self._leaving = threading.Event()  # set: do not wait for other ranks any more
        self._settled = 0  # how often `_settle` has run
        self._seen = 0  # number of artifacts at the last `_settle`
        self._outcome = LoadResult(reason="no compile yet")
        self._library: Library | None = None
        self._environment: Environment | None = None
        self._node: Node | None = None

    def install(self) -> "Session":
        """Register for the begin and end of compiles; torch._dynamo is imported."""
        when_imported(winners.MODULE, winners.remember)
        caches.on_compiles(self.before, self.after)
        return self

    # Before the first compile ------------------------------------------------------------------

    def before(self) -> None:
        """A compile begins: at the first one, load an archive from the library."""
        self._compiling = True
        if self._began:
            return
        self._began = True
        began = now_ns()
        try:
            self._outcome = self._begin()
        except Exception as error:
            self._outcome = LoadResult(reason=_why(error))
        if self._outcome.match == "none" and self._outcome.reason:
            log.warning("torchett: compiling without %s: %s", self.url, self._outcome.reason)
        api.past_span("pt2_compile", began, now_ns())
        outcome = asdict(self._outcome)
        del outcome["names"], outcome["pgo"]
        api.note(KIND, {"event": "load", "url": self.url, **outcome})

    def _begin(self) -> LoadResult:
        cache = caches.cache_dir()
        caches.choose_triton_dir()
        self._node = Node(cache, self._env)
        self._environment = here(self._workload)
        store = open_store(self.url)
        self._library = Library(store, key_for(store, self._env, create=True))
        atexit.register(self._at_exit)
        try:
            found = self._node.once(lambda: self._load(cache), self._wait_s)
        except BusyError:
            return LoadResult(
                reason=f"another rank took longer than {self._wait_s:.0f} s to load it"
            )
        self._install_profile(found)
        return found

    def _load(self, cache: Path) -> LoadResult:
        """Find, check and install an archive; an error becomes the outcome's reason."""
        assert self._library is not None
        assert self._environment is not None
        assert self._node is not None
        began = time.monotonic()
        nothing = LoadResult(loaded_by=os.getpid())
        try:
            nearest = self._library.nearest(self._environment)
            if nearest is None:
                return replace(nothing, reason="")
            head, exact = nearest
            archive = self._library.find(self._environment, head)
            got = time.monotonic()
            checked = contents(archive)
        except (EttError, StoreError, OSError) as error:
            return replace(nothing, reason=_why(error))
        pgo: list[tuple[str, str]] = []
        for one, data in checked:
            if one.kind == "file":
                _install_file(cache, one, data)
            elif one.kind == "pgo":
                pgo.append((one.name, str(self._node.keep(f"pgo-{len(pgo)}", data))))
            else:
                caches.install_artifact(one.kind, one.name, data)
        return LoadResult(
            match="exact" if exact else "nearest",
            archive=head.archive,
            bytes=head.size,
            entries=len(archive.entries),
            download_s=round(got - began, 3),
            install_s=round(time.monotonic() - got, 3),
            loaded_by=os.getpid(),
            pgo=tuple(pgo),
            names=tuple(one.identity for one in archive.entries),
        )

    def _install_profile(self, found: LoadResult) -> None:
        """Install the profile of the same rank, else of another one, under this rank's key."""
        key = caches.pgo_key() if found.pgo else None
        if key is None:
            return
        job, _, _ = key.rpartition(":")
        job, _, rank = job.rpartition(":")

        def fits(name: str) -> tuple[bool, bool]:
            theirs, _, _ = name.rpartition(":")
            their_job, _, their_rank = theirs.rpartition(":")
            return (their_job == job, their_rank == rank)

        _, file = max(found.pgo, key=lambda one: fits(one[0]))
        caches.write_pgo(key, Path(file).read_bytes())

    # After the warm-up -------------------------------------------------------------------------

    def after(self) -> None:
        """A compile is over."""
        self._compiling = False
        self._last_compile = time.monotonic()
        if self._watch is None and self._settled < _ROUNDS and self._library is not None:
            self._watch = threading.Thread(target=self._quiet, name="ett-cache", daemon=True)
            self._watch.start()

    def _quiet(self) -> None:
        """Wait until there was no compile or tuning for a while, then settle."""
        while (left := self._quiet_left()) > 0:
            time.sleep(left)
        self._watch = None
        self.settle(wait_s=60.0)

    def _quiet_left(self) -> float:
        if self._compiling or winners.tuning():
            return self._quiet_s
        return max(self._last_compile, winners.last_tuned()) + self._quiet_s - time.monotonic()

    def _at_exit(self) -> None:
        if not self._last_compile:
            return
        is_failing = hasattr(sys, "last_value")  # then the other ranks are not exiting
        wait_s = 0.0 if is_failing else 10.0
        if not self._settling.acquire(blocking=False):
            self._leaving.set()  # the thread is settling: it stops waiting for other ranks
            if not self._settling.acquire(timeout=wait_s):
                return
        try:
            self._settle(wait_s)
        finally:
            self._settling.release()

    def settle(self, wait_s: float) -> None:
        """Count hits and misses and publish new entries; again if there are more later."""
        with self._settling:
            self._settle(wait_s)

    def _settle(self, wait_s: float) -> None:
        if self._library is None or self._settled == _ROUNDS:
            return
        fact: dict[str, object] = {"event": "settle", "url": self.url}
        try:
            seen = caches.seen_count()
            if self._settled and seen == self._seen:
                return
            self._seen, self._settled = seen, self._settled + 1
            # Later compiles happen on each rank at other times, so no rank waits for them.
            fact |= asdict(caches.counts())
            fact |= self._hand_in(wait_s if self._settled == 1 else 0.0)
        except Exception as error:
            self._settled = _ROUNDS
            fact["reason"] = _why(error)
            log.warning("torchett: compiled code was not published: %s", fact["reason"])
        api.note(KIND, fact)

    def _hand_in(self, wait_s: float) -> dict[str, object]:
        """Pass new entries to the node's first rank; that one publishes them."""
        assert self._library is not None
        assert self._environment is not None
        assert self._node is not None
        words, node, library = self._environment.words(), self._node, self._library
        if library.key is None:
            raise RefusedError(f"{self.url} can be written to by others: {HOW}")
        # Entries from the archive of another environment are new in the archive of ours.
        there = set(self._outcome.names) if self._outcome.match == "exact" else set()
        known = {name[:2] for name in self._outcome.names}
        found = harvest(caches.cache_dir(), there)
        if node.local_rank > 0:
            node.hand_in(pack(words, found.new, library.key))
            return {"new": len(found.new), "handed_in": True}
        new = found.new
        for part in node.collect(wait_s, self._leaving) if node.local_ranks > 1 else ():
            new = with_another_rank(new, unpack(part, library.key).entries, known)
        if not new:
            return {"new": 0, "published": None, "why": "nothing new"}
        if node.number > 0:
            self._leaving.wait(min(wait_s, 2.0 * node.number))  # node 0 publishes first
        added = Addition(entries=new, known=known, used=found.used)
        name, why = library.publish(words, self._environment.key, added)
        return {"new": len(new), "published": name, "why": why}


def _install_file(cache: Path, one: Entry, data: bytes) -> None:
    path = cache / one.name
    path.parent.mkdir(parents=True, exist_ok=True)
    inside = os.path.realpath(path.parent).startswith(os.path.realpath(cache) + os.sep)
    if not inside:
        raise RefusedError(f"{path.parent} is a link to a folder outside {cache}")
    if not path.exists():
        mode = 0o755 if one.name.endswith(".so") else 0o644
        write_whole(path, data, mode=mode, durable=False)


def _why(error: Exception) -> str:
    if isinstance(error, (EttError, StoreError)):
        return str(error)
    return f"{type(error).__name__}: {error}"


_session: Session | None = None
_starting = threading.Lock()


def start(url: str, *, workload: str | None = None) -> Session:
    """This process's session, made at the first call; torch._dynamo must be imported."""
    global _session
    with _starting:
        if _session is None:
            _session = Session(url, os.environ, workload=workload).install()
        elif _session.url != url:
            log.warning("torchett: only one compile cache per process: %s is used, %s is not",
                        _session.url, url)  # fmt: skip
        return _session
