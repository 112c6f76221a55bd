"""The restart policy that a launcher and its agent share.

    ett run ── spawns ── torch's agent (ours) ── ranks
      │                    │ a life ended: LifeEnd
      │ ◄── a socket ──────┘
      policy.decide ──────► Decision

The policy comes from outside (`cli` passes that of `failures`); without one, a command that fails
is started again as often as was asked.
"""

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torchett.model.restarts import Decision, LifeEnd, RestartPolicy
from torchett.runs.printed import Printed

FD = "ETT_POLICY_FD"
MakePolicy = Callable[[Path, Mapping[str, str], Printed], RestartPolicy]


class Restarts:
    """The policy, made on a thread of its own, which also answers the agent."""

    def __init__(
        self, make: MakePolicy, run: Path, env: Mapping[str, str], limit: int, *, shared: bool
    ) -> None:
        """`limit`: the --max-restarts of `ett run`; `shared`: the agent's restarts count, too."""
        self._make = partial(make, run, env, Printed())  # what is printed from now on is evidence
        self._limit, self._shared = limit, shared
        self._policy: RestartPolicy | None = None
        self._made = threading.Event()
        self._one_at_once = threading.Lock()
        self._ours, self._agents = socket.socketpair()
        os.set_inheritable(self._agents.fileno(), True)
        threading.Thread(target=self._serve, name="ett-policy", daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which the agent finds the policy."""
        return {FD: str(self._agents.fileno())}

    def decide(self, end: LifeEnd) -> Decision | None:
        """The decision after this failure; None if the policy cannot decide."""
        self._made.wait()
        if self._policy is None:
            return None
        limit = end.limit if end.by == "agent" and not self._shared else self._limit
        try:
            with self._one_at_once:
                return self._policy.decide(replace(end, limit=limit, shared_limit=self._shared))
        except Exception as error:  # a job must not depend on it
            print(f"ett: the restart policy failed: {error!r}", file=sys.stderr, flush=True)
            return None

    def close(self) -> None:
        for end in (self._ours, self._agents):
            end.close()

    def _serve(self) -> None:
        try:
            self._policy = self._make()
        finally:
            self._made.set()
        try:
            with self._ours.makefile("rwb") as stream:
                for line in stream:
                    if (said := self._answer(json.loads(line))) is not None:
                        stream.write(json.dumps(said).encode() + b"\n")
                        stream.flush()
        except (OSError, ValueError):
            pass  # the launcher has closed it

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        if "hear" in asked:
            if self._policy is not None:
                self._policy.hear(asked["hear"])
            return None
        decision = self.decide(LifeEnd.from_json(asked["end"]))
        if decision is None or self._policy is None:
            return {}
        print(f"ett: {decision}", file=sys.stderr, flush=True)
        return {"decision": decision.to_json(), "facts": self._policy.last_facts()}


class AskPolicy:
    """The agent's side: requests a decision of the launcher's policy; None without an answer."""

    def __init__(self, fd: str | None, patience_s: float = 20.0) -> None:
        self._stream: Any = None
        self.facts: list[dict[str, Any]] = []  # of the last decision, for other nodes
        if fd is None or not fd.isdecimal():
            return
        try:
            os.set_inheritable(int(fd), False)
            ours = socket.socket(fileno=int(fd))
            ours.settimeout(patience_s)
            self._stream = ours.makefile("rwb")
        except OSError:
            return

    def decide(self, end: LifeEnd) -> Decision | None:
        answer = self._say({"end": end.to_json()}, answered=True)
        if answer is None:
            return None
        try:
            self.facts = list(answer["facts"])
            return Decision.from_json(answer["decision"])
        except (KeyError, ValueError, TypeError):
            return None

    def hear(self, facts: list[dict[str, Any]]) -> None:
        """Send the decisions of other nodes' policies."""
        if facts:
            self._say({"hear": facts}, answered=False)

    def _say(self, message: dict[str, Any], *, answered: bool) -> dict[str, Any] | None:
        if self._stream is None:
            return None
        try:
            self._stream.write(json.dumps(message).encode() + b"\n")
            self._stream.flush()
            found = json.loads(self._stream.readline()) if answered else None
        except (OSError, ValueError):
            self._stream = None  # the launcher is gone, or late: an answer would be another's
            return None
        return found if isinstance(found, dict) else None
