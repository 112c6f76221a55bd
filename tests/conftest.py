"""Which tests are heavy; rings of ranks that tests kill are removed when the tests are over."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from torchett.record.flight.ring import all_rings, owner, read_ring

# Modules whose tests run many trainers or compile: `./dev test --all` and CI run them, too.
HEAVY = {
    "e2e/test_drill_examples.py",
    "e2e/test_kills.py",
    "e2e/test_slurm_preemption.py",
    "e2e/test_training.py",
    "examples/test_examples.py",
    "launch/standby/test_standby_model.py",
    "launch/test_agent.py",
    "launch/test_elastic_probe.py",
    "launch/test_lost_node.py",
    "launch/test_members.py",
    "launch/test_same_behaviour.py",
    "launch/test_two_nodes.py",
    "launch/test_watch.py",
    "levers/checkpoint/test_node_loss.py",
    "levers/checkpoint/test_preempted.py",
    "levers/checkpoint/test_ranks.py",
    "levers/checkpoint/test_replicas.py",
    "levers/checkpoint/test_s3.py",
    "levers/checkpoint/test_shardings.py",
    "levers/checkpoint/test_standing_loop.py",
    "levers/checkpoint/test_upload_watch.py",
    "levers/compile/test_keys.py",
    "levers/compile/test_learned.py",
    "levers/compile/test_session.py",
    "levers/publish/test_publish_end_to_end.py",
    "levers/publish/test_publish_from_a_trainer.py",
    "levers/startup/test_recipe.py",
    "record/test_hooks_loops.py",
    "record/test_truth.py",
}
# One example may take seconds on a loaded machine, so Hypothesis sets no time limits.
settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded")
_HERE = Path(__file__).parent
_before: set[Path] = set()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE) and str(item.path.relative_to(_HERE)) in HEAVY:
            item.add_marker(pytest.mark.heavy)


def pytest_configure(config: pytest.Config) -> None:
    _before.update(all_rings())


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    ours = str(config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
    for path in set(all_rings()) - _before:
        ring = read_ring(path)
        runs = [] if ring is None or owner(ring) is None else [n.get("run") for n in ring.notes()]
        if any(str(run).startswith(ours) for run in runs):
            path.unlink(missing_ok=True)
