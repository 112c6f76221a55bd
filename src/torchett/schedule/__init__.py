"""Which jobs to preempt: policies as pure functions, and a simulator that says what they cost."""

from torchett.schedule.policy import OURS, POLICIES, FreshnessPolicy, Policy
from torchett.schedule.simulation.outcome import SimulationResult
from torchett.schedule.simulation.simulator import simulate
from torchett.schedule.simulation.synthetic import synthetic
from torchett.schedule.simulation.traces import read_failures, read_sizes, read_trace
from torchett.schedule.simulation.workload import (
    SLURM_HOLD_S,
    Habits,
    Settings,
    Trace,
    Workload,
    workload,
)
from torchett.schedule.values import Candidates, Decision, Demand, Eviction, State

__all__ = [
    "OURS",
    "POLICIES",
    "SLURM_HOLD_S",
    "Candidates",
    "Decision",
    "Demand",
    "Eviction",
    "FreshnessPolicy",
    "Habits",
    "Policy",
    "Settings",
    "SimulationResult",
    "State",
    "Trace",
    "Workload",
    "read_failures",
    "read_sizes",
    "read_trace",
    "simulate",
    "synthetic",
    "workload",
]
