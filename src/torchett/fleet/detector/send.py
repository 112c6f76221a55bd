"""Sends alerts to a webhook and to an Alertmanager, when they open and when they are resolved."""

import json
import urllib.request
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from torchett.fleet.detector.alerts import Alert
from torchett.fleet.detector.settings import SendSettings

_TIMEOUT_S = 5.0
_LONGEST = 1000


def send_webhook(settings: SendSettings, alert: Alert) -> str | None:
    """Post one alert that opened or closed; what went wrong, or None."""
    if not settings.webhook:
        return None
    status = "firing" if alert.closed_s is None else "resolved"
    return _post(settings.webhook, {"status": status, "alert": alert.to_json()})


def send_alertmanager(settings: SendSettings, alerts: Iterable[Alert]) -> str | None:
    """Post alerts as Alertmanager wants them: open ones at every look, closed ones with an end."""
    found = [alertmanager_alert(one) for one in alerts]
    if not settings.alertmanager or not found:
        return None
    return _post(f"{settings.alertmanager.rstrip('/')}/api/v2/alerts", found)


def alertmanager_alert(alert: Alert) -> dict[str, Any]:
    """One alert in the form of Alertmanager's API, version 2.

    Without an end, Alertmanager considers an alert resolved some minutes after the last post.
    """
    labels = {"alertname": f"torchett_{alert.rule}", "severity": alert.severity}
    if alert.project:
        labels["project"] = alert.project
    if alert.job:
        labels["ett_job"] = alert.job
    found: dict[str, Any] = {
        "labels": labels | _cut(alert.subject),
        "annotations": {"summary": alert.text[:_LONGEST], "alert": str(alert.id)},
        "startsAt": _stamp(alert.opened_s),
    }
    if alert.closed_s is not None:
        found["endsAt"] = _stamp(alert.closed_s)
    return found


def _cut(labels: Mapping[str, str]) -> dict[str, str]:
    return {key: value[:_LONGEST] for key, value in labels.items()}


def _stamp(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat().replace("+00:00", "Z")


def _post(url: str, value: Any) -> str | None:
    body = json.dumps(value, ensure_ascii=False).encode()
    headers = {"content-type": "application/json"}
    try:
        request = urllib.request.Request(url, body, headers, method="POST")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            answer.read(1)
    except (OSError, ValueError) as error:
        return f"{url}: {error}"[:300]
    return None
