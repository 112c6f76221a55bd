"""What a fleet's alarms watch for and where they are sent: FLEET/alerts.toml, every key optional.

classes = ["team", "model"]     # jobs with the same values are one class
budget = 1.0                    # false alarms a week that the whole fleet may make
least_points = 0.3              # a smaller drop of a class is not worth an alarm

[limits]                        # of the last day and each class; 0: not watched
time_to_start_s = 600
time_to_recover_s = 900
unsaved_percent = 2.0
saving_percent = 3.0
held_idle_percent = 5.0
at_risk_s = 7200                # of a live job: training that no durable checkpoint holds
stalled_s = 3600                # of a live job: without any training
silent_s = 900                  # of a live job: without any sign of life

[send]
webhook = "https://…"
alertmanager = "http://alertmanager:9093"
"""

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from torchett.fleet.schema import LABELS
from torchett.model.errors import InputError

FILE = "alerts.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    time_to_start_s: float = 0.0
    time_to_recover_s: float = 0.0
    unsaved_percent: float = 0.0
    saving_percent: float = 0.0
    held_idle_percent: float = 5.0
    at_risk_s: float = 7200.0
    stalled_s: float = 3600.0
    silent_s: float = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSettings:
    webhook: str = ""
    alertmanager: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    classes: tuple[str, ...] = ("team", "model")
    budget: float = 1.0
    least_points: float = 0.3
    limits: LimitSettings = field(default_factory=LimitSettings)
    send: SendSettings = field(default_factory=SendSettings)


def read_settings(folder: Path) -> Settings:
    """The settings of a fleet folder; without a file the usual ones."""
    path = folder / FILE
    try:
        said = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return Settings()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: expected TOML: {error}") from None
    known = {one.name for one in fields(Settings)}
    if unknown := set(said) - known:
        raise InputError(f"{path}: expected {', '.join(sorted(known))}; found {min(unknown)}")
    classes = said.get("classes", ["team", "model"])
    if not isinstance(classes, list) or not set(classes) <= {"project", *LABELS}:
        raise InputError(f"{path}: classes: expected labels of {', '.join(LABELS)}: {classes}")
    return Settings(
        classes=tuple(classes),
        budget=_number(path, "budget", said.get("budget", 1.0), least=0.001),
        least_points=_number(path, "least_points", said.get("least_points", 0.3)),
        limits=LimitSettings(**_numbers(path, "limits", said.get("limits", {}), LimitSettings)),
        send=SendSettings(**_addresses(path, said.get("send", {}))),
    )


def _numbers(path: Path, name: str, said: Any, kind: type) -> dict[str, float]:
    known = {one.name for one in fields(kind)}
    if not isinstance(said, dict) or not set(said) <= known:
        raise InputError(f"{path}: [{name}]: expected {', '.join(sorted(known))}; found {said}")
    return {key: _number(path, f"{name}.{key}", value) for key, value in said.items()}


def _number(path: Path, key: str, value: Any, least: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise InputError(f"{path}: {key}: expected a number of at least {least:g}, found {value!r}")
    return float(value)


def _addresses(path: Path, said: Any) -> dict[str, str]:
    known = {one.name for one in fields(SendSettings)}
    if not isinstance(said, dict) or not set(said) <= known:
        raise InputError(f"{path}: [send]: expected {', '.join(sorted(known))}; found {said}")
    for key, value in said.items():
        if not isinstance(value, str) or not value.startswith(("http://", "https://")):
            raise InputError(f"{path}: send.{key}: expected an http address, found {value!r}")
    return said
