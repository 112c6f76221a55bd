"""What a rule has noticed, before an alert is sent."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["page", "warn", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One thing that is wrong now; the same rule, project, job and subject is the same alert."""

    rule: str
    severity: Severity
    text: str
    value: float
    expected: float | None = None
    project: str | None = None
    job: str | None = None
    subject: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str | None, str | None, str]:
        return self.rule, self.project, self.job, subject_json(self.subject)


def subject_json(subject: Mapping[str, str]) -> str:
    return json.dumps(subject, sort_keys=True, ensure_ascii=False)
