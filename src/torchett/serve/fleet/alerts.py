"""The Alerts page: what is open, with its proof; what is over; mutes; and what a reader may do."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torchett.fleet import Fleet
from torchett.fleet.detector.alerts import Alert, Alerts, Mute
from torchett.model.errors import InputError
from torchett.serve.fleet.source import FleetSource

_HOURS = {"1": "an hour", "8": "8 hours", "24": "a day", "168": "a week"}
_MOST_TEXT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsView:
    """The whole page."""

    open: list[Alert]
    history: list[Alert]
    mutes: list[Mute]
    may_act: bool

    @property
    def hours(self) -> Mapping[str, str]:
        return _HOURS

    def to_json(self) -> dict[str, Any]:
        return {
            "open": [one.to_json() for one in self.open],
            "history": [one.to_json() for one in self.history],
            "mutes": [asdict(one) for one in self.mutes],
        }


def alerts_view(source: FleetSource, may_act: bool) -> AlertsView:
    """All alerts as of now."""
    now_s = source.clock()

    def read(fleet: Fleet) -> AlertsView:
        known = Alerts(fleet.state)
        return AlertsView(
            open=known.open(now_s),
            history=known.history(now_s),
            mutes=known.mutes(now_s),
            may_act=may_act,
        )

    return source.call(read)


def open_alerts(source: FleetSource, labels: Mapping[str, str]) -> list[Alert]:
    """Open, unmuted alerts that are about these labels, or not about any of them."""
    found = source.call(lambda fleet: Alerts(fleet.state).open(source.clock()))
    return [
        one
        for one in found
        if not one.muted and all(one.subject.get(k, v) == v for k, v in labels.items())
    ]


def act(source: FleetSource, form: Mapping[str, str]) -> None:
    """Do what a form of the page asks for: acknowledge, mute or unmute."""
    now_s = source.clock()
    who, note = (form.get(key, "")[:_MOST_TEXT] or None for key in ("who", "note"))
    what, number = form.get("what", ""), _number(form.get("id", ""))

    def done(fleet: Fleet) -> None:
        known = Alerts(fleet.state)
        if what == "acknowledge":
            known.acknowledge(number, who, note, now_s)
        elif what == "mute":
            (one,) = known.of([number], now_s)
            hours = form.get("hours", "")
            if hours not in _HOURS:
                raise InputError(
                    f"hours: expected one of {', '.join(_HOURS)}, found {hours[:20]!r}"
                )
            subject = {**one.subject, **({"job": one.job} if one.job else {})}
            until_s = now_s + 3600 * int(hours)
            known.mute(one.rule, subject, until_s, who=who, note=note, now_s=now_s)
        elif what == "unmute":
            known.unmute(number, now_s)
        else:
            raise InputError(f"expected acknowledge, mute or unmute, found {what[:20]!r}")

    source.call(done)
    source.forget()


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InputError(f"id: expected a number, found {text[:20]!r}")
    return int(text)
