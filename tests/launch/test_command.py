"""What `ett run` starts, and who makes the restarts."""

import pytest

from torchett.launch.command import AGENT, with_restarts

OURS = ("python", "-uP", "-m", AGENT)
STOCK = ("/env/bin/torchrun",)


@pytest.mark.parametrize("torchrun", [OURS, STOCK, ("python", "-m", "torch.distributed.run")])
def test_restarts_are_handed_to_torchs_agent(torchrun: tuple[str, ...]) -> None:
    words = ("--nproc-per-node", "2", "train.py", "--max-restarts", "9")  # the last is the script's
    command, by_agent, said = with_restarts((*torchrun, *words), 3, False, {})
    assert command == (*torchrun, "--max-restarts=3", *words)
    assert by_agent
    assert said == "torchrun is given --max-restarts=3: its agent restarts ranks"


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (("--max-restarts", "5", "train.py"), {}),
        (("--max_restarts=5", "-m", "train"), {}),
        (("train.py",), {"PET_MAX_RESTARTS": "5"}),
    ],
)
def test_a_torchrun_that_has_restarts_keeps_them(
    words: tuple[str, ...], env: dict[str, str]
) -> None:
    command, by_agent, said = with_restarts((*OURS, *words), 3, False, env)
    assert (command, by_agent) == ((*OURS, *words), False)
    assert said is not None
    assert "up to 5 times" in said
    assert "up to 3 times" in said


@pytest.mark.parametrize(
    ("command", "restarts", "as_is"),
    [
        (("bash", "-c", "torchrun train.py"), 3, False),
        (("python", "-m", "train", "torchrun"), 3, False),
        ((*STOCK, "train.py"), 3, True),
        ((*STOCK, "train.py"), 0, False),
    ],
)
def test_other_commands_are_started_again_by_us(
    command: tuple[str, ...], restarts: int, as_is: bool
) -> None:
    assert with_restarts(command, restarts, as_is, {}) == (command, False, None)
