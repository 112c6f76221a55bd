"""One look at a fleet: notice changes, open and close alerts, send them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from torchett.fleet.detector.alerts import Alert, Alerts
from torchett.fleet.detector.limits import over_limits
from torchett.fleet.detector.regressions import RULE, Detector
from torchett.fleet.detector.send import send_alertmanager, send_webhook
from torchett.fleet.detector.series import ACCOUNT_SQL
from torchett.fleet.fleet import Fleet

_GIVEN_UP_DAYS = 14  # after which a regression is the new usual
_OVER_PART = 0.5  # of the drop: a regression whose last day lost less than this is over


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What one look did."""

    opened: Sequence[Alert]
    closed: Sequence[Alert]
    errors: Sequence[str]


def look(fleet: Fleet, detector: Detector, now_s: float) -> Looked:
    """Notice what is wrong now, and send it where the settings say; muted ones are not sent."""
    now = datetime.fromtimestamp(now_s, UTC).replace(tzinfo=None)
    settings = detector.settings
    notices = detector.look(fleet, now) + over_limits(fleet, settings, now)
    alerts = Alerts(fleet.state)
    over = [one.id for one in alerts.open(now_s) if one.rule == RULE and _over(fleet, one, now)]
    opened, closed = alerts.update(notices, now_s, over=over)
    news = alerts.of([*opened, *closed], now_s)
    errors = []
    for one in news:
        if one.muted:
            continue
        error = send_webhook(settings.send, one)
        if error is not None:
            errors.append(error)
            alerts.note(one.id, "failed to send", error, now_s)
    shut = [one for one in news if one.closed_s is not None]
    firing = [one for one in alerts.open(now_s) if not one.muted]
    error = send_alertmanager(settings.send, [*firing, *shut])
    if error is not None:
        errors.append(error)
    opened_now = [one for one in news if one.closed_s is None]
    return Looked(opened=opened_now, closed=shut, errors=errors)


def _over(fleet: Fleet, alert: Alert, now: datetime) -> bool:
    """Whether the class of a regression trains again nearly as much as before."""
    opened = datetime.fromtimestamp(alert.opened_s, UTC).replace(tzinfo=None)
    if now - opened > timedelta(days=_GIVEN_UP_DAYS):
        return True
    clauses = "".join(f' AND "{name}" = ?' for name in alert.subject)
    rows = fleet.query(
        f"SELECT {ACCOUNT_SQL} = 'effective' AS kept, sum(ns)::DOUBLE AS ns FROM hours"
        f" WHERE hour >= ? AND hour < ?{clauses} GROUP BY ALL",
        [now - timedelta(days=1), now, *alert.subject.values()],
    ).to_pylist()
    whole = sum(row["ns"] for row in rows)
    if not whole or alert.expected is None or alert.value is None:
        return False
    percent = 100 * sum(row["ns"] for row in rows if row["kept"]) / whole
    return bool(alert.expected - percent < _OVER_PART * (alert.expected - alert.value))
