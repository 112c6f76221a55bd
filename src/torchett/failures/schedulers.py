"""What schedulers say of a job, as lines that the rules know.

Slurm's messages and `sacct` tables are text and need nothing. A Kubernetes pod is JSON
(`kubectl get pod NAME -o json`, also a list of pods): its reasons and exit codes become lines.

    status.reason: Evicted                          →  Reason: Evicted  Message: The node was low …
    containerStatuses[].state.terminated: …         →  Reason: OOMKilled  Exit Code: 137
"""

from collections.abc import Iterator
from typing import Any, Final

_PARTS: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


def lines_of_pods(content: Any) -> list[str] | None:
    """The lines of a pod, or of a list of pods; None if the content is neither."""
    if not isinstance(content, dict):
        return None
    pods = content.get("items") if content.get("kind") in ("List", "PodList") else [content]
    if not isinstance(pods, list):
        return None
    pods = [pod for pod in pods if isinstance(pod, dict) and isinstance(pod.get("status"), dict)]
    if not pods:
        return None
    return [line for pod in pods for line in _lines_of_pod(pod["status"])]


def _lines_of_pod(status: dict[str, Any]) -> Iterator[str]:
    if status.get("reason"):
        yield _line(status)
    for condition in _dicts(status.get("conditions")):
        if condition.get("type") == "DisruptionTarget":
            yield _line(condition)
    for part in _PARTS:
        for container in _dicts(status.get(part)):
            for key in ("lastState", "state"):
                state = container.get(key)
                for name in ("terminated", "waiting"):
                    said = state.get(name) if isinstance(state, dict) else None
                    if isinstance(said, dict) and said.get("exitCode") != 0:
                        yield _line(said)


def _line(said: dict[str, Any]) -> str:
    words = [f"Reason: {said.get('reason', '')}"]
    if "exitCode" in said:
        words.append(f"Exit Code: {said['exitCode']}")
    if said.get("message"):
        words.append(f"Message: {said['message']}".replace("\n", " "))
    return "  ".join(words)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
