"""Ranks that are absent from a collective, by the flight recorder's dumps of a job's ranks.

torch keeps the last collectives of each process group (NCCL, gloo) in a ring, which its watchdog
or a program writes to one file a rank: pickled (`_dump_fr_trace`) or JSON (`_dump_fr_trace_json`).

    group 0   rank 0  … 41 42 43        all_reduce 43 was begun by ranks 0, 1 and 3:
              rank 1  … 41 42 43        they wait, and rank 2 is absent
              rank 2  … 41 42
              rank 3  … 41 42 43

A rank may be absent from one collective because it waits in another. Such a rank did not begin the
failure, unless all absent ranks wait for each other.
"""

import ast
import json
import pickle
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from torchett.model.errors import InputError

_NUMBER_AT_END: Final = re.compile(r"(\d+)(?:\.\w+)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """What one rank's recorder holds: the last collective of each group, and the members."""

    rank: int
    last: Mapping[str, tuple[int, str]]  # group → sequence number, name of the collective
    members: Mapping[str, frozenset[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A collective that some members of its group have begun and others have not."""

    group: str
    sequence: int
    name: str
    waiting: frozenset[int]
    absent: frozenset[int]  # behind by their dumps; where none is, the ranks without a dump

    def __str__(self) -> str:
        def shown(ranks: frozenset[int]) -> str:
            return ", ".join(map(str, sorted(ranks)))

        return (
            f"flight recorder: {self.name}, number {self.sequence} of group {self.group}:"
            f" ranks {shown(self.waiting)} wait, absent: {shown(self.absent)}"
        )


class _Plain(pickle.Unpickler):
    """Reads dicts, lists, texts and numbers. A pickle that names a class or function is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it would call {module}.{name}")


def is_dump(data: bytes) -> bool:
    """Whether a file looks like a dump; text never does."""
    return data[:1] == b"\x80" or (
        data[:1] == b"{" and b'"pg_config"' in data and b'"entries"' in data
    )


def read_dump(path: Path, data: bytes, rank: int | None = None) -> Dump:
    """One rank's dump. The rank is the number at the end of the file's name, unless given."""
    try:
        content = _Plain(BytesIO(data)).load() if data[:1] == b"\x80" else json.loads(data)
    except Exception as error:  # unpickling damaged bytes may raise anything
        raise InputError(f"{path}: expected a flight recorder's dump: {error}") from None
    number = _NUMBER_AT_END.search(path.name)
    if rank is None and number is None:
        raise InputError(f"{path}: expected a name that ends with the rank, as trace_3")
    try:
        return _dump(content, rank if number is None or rank is not None else int(number[1]))
    except (KeyError, TypeError, ValueError, SyntaxError, AttributeError, IndexError) as error:
        raise InputError(f"{path}: expected a flight recorder's dump: {error!r}") from None


def _dump(content: Mapping[str, Any], rank: int | None) -> Dump:
    last: dict[str, tuple[int, str]] = {}
    members: dict[str, frozenset[int]] = {}
    config = content["pg_config"]
    for entry in content["entries"]:
        if entry.get("is_p2p"):
            continue
        name, described = entry["process_group"]
        group = f"{name} ({described})"
        if group not in members:
            # gloo's recorder keeps its only group under an empty name.
            own = config.get(name) or config.get("")
            members[group] = frozenset(ast.literal_eval(own["ranks"]) if own else ())
        sequence = int(entry["collective_seq_id"])
        if sequence >= last.get(group, (-1, ""))[0]:
            last[group] = sequence, str(entry["profiling_name"])
    assert rank is not None
    return Dump(rank=rank, last=last, members=members)


def stuck_collectives(dumps: Iterable[Dump]) -> list[Stuck]:
    """The collectives that are waited for, one a group at most. One dump alone shows none."""
    known = list(dumps)
    if len(known) < 2:
        return []
    members: dict[tuple[str, frozenset[int]], list[Dump]] = {}
    for dump in known:
        for group, ranks in dump.members.items():
            members.setdefault((group, ranks), []).append(dump)
    found = []
    for (group, ranks), having in members.items():
        sequence, name = max(dump.last[group] for dump in having)
        waiting = frozenset(dump.rank for dump in having if dump.last[group][0] == sequence)
        behind = frozenset(dump.rank for dump in having) - waiting
        if absent := behind or ranks - waiting:
            found.append(
                Stuck(group=group, sequence=sequence, name=name, waiting=waiting, absent=absent)
            )
    return found


def absent_ranks(stuck: Iterable[Stuck]) -> frozenset[int]:
    """The ranks that others wait for and that do not wait themselves."""
    all_stuck = list(stuck)
    absent = frozenset(rank for one in all_stuck for rank in one.absent)
    waiting = frozenset(rank for one in all_stuck for rank in one.waiting)
    return absent - waiting or absent
