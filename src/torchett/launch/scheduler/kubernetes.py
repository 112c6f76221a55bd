"""Kubernetes' times of this pod, from the pod object: the downward API has none.

The object is the file $ETT_POD, else what the API server answers to the pod's service account
(which must be allowed to `get` pods). Conditions carry whole seconds.

    creation ┄┄┄ PodScheduled ── Initialized ── container started ── launcher
    asked for    given           images pulled, init containers done
"""

import json
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def pod_times(env: Mapping[str, str], within_s: float) -> tuple[dict[str, object], str | None]:
    """What Kubernetes says about the pod of this environment, and a note if it does not answer."""
    account = Path(env.get("ETT_SERVICE_ACCOUNT") or _ACCOUNT)
    if not env.get("ETT_POD") and not (account / "token").exists():
        return {}, None  # a pod without a service account must not ask
    from urllib.error import HTTPError

    try:
        if env.get("ETT_POD"):
            pod = json.loads(Path(env["ETT_POD"]).read_bytes())
        else:
            pod = json.loads(_ask(env, account, within_s))
        return parsed(pod), None
    except HTTPError as error:
        why = f"the API server says {error.code}: allow the service account to get pods"
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        why = str(reason)
    return {}, f"Kubernetes' times are not known: {why}"


def parsed(pod: Mapping[str, Any]) -> dict[str, object]:
    """Times of a pod object, in seconds since the epoch."""
    status = pod.get("status") or {}
    condition_times = {
        condition.get("type"): _seconds(condition.get("lastTransitionTime"))
        for condition in status.get("conditions") or ()
        if condition.get("status") == "True"
    }
    containers = status.get("containerStatuses") or ()
    running = [(c.get("state") or {}).get("running") or {} for c in containers]
    started = [t for t in (_seconds(state.get("startedAt")) for state in running) if t is not None]
    said: dict[str, object] = {
        "scheduler": "kubernetes",
        "submitted_s": _seconds((pod.get("metadata") or {}).get("creationTimestamp")),
        "allocated_s": condition_times.get("PodScheduled") or _seconds(status.get("startTime")),
        "initialized_s": condition_times.get("Initialized"),
        "containers_ready_s": condition_times.get("ContainersReady"),
        "container_started_s": min(started, default=None),
        "restarts": max((int(c.get("restartCount") or 0) for c in containers), default=None),
    }
    return {key: value for key, value in said.items() if value is not None}


def _ask(env: Mapping[str, str], account: Path, within_s: float) -> bytes:
    """The pod object, as the API server has it."""
    import ssl
    from urllib.request import Request, urlopen

    host, port = env["KUBERNETES_SERVICE_HOST"], env.get("KUBERNETES_SERVICE_PORT", "443")
    space = env.get("POD_NAMESPACE") or (account / "namespace").read_text().strip()
    name = env.get("POD_NAME") or env.get("HOSTNAME") or os.uname().nodename
    host = f"[{host}]" if ":" in host else host
    request = Request(
        f"https://{host}:{port}/api/v1/namespaces/{space}/pods/{name}",
        headers={"Authorization": f"Bearer {(account / 'token').read_text().strip()}"},
    )
    trusted = ssl.create_default_context(cafile=str(account / "ca.crt"))
    with urlopen(request, timeout=within_s, context=trusted) as answer:
        read: bytes = answer.read(1 << 22)
    return read


def _seconds(text: object) -> float | None:
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
