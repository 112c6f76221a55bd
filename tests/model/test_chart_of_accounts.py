"""The chart of accounts: every name once, in its branch, in a colour of its own."""

import re
from pathlib import Path

import pytest

from torchett.model import ACCOUNTS, account
from torchett.model.accounts import (
    BY_NAME,
    GROUP_COLOURS,
    GROUPS,
    INDEX,
    NAMES,
    RECORDABLE,
    is_own,
    is_recordable,
)

START = """scheduling hardware_setup launcher_init imports device_init process_group_init
    preproc_creation train_module_creation init_plugins pre_train get_first_batch_data
    checkpoint_restore pt2_compile"""
IN_LOOP = "checkpoint_blocked recompile data_wait evaluation other_in_loop"
SHUTDOWN = "final_checkpoint publish teardown"


def of_kind(kind: str) -> set[str]:
    return {one.name for one in ACCOUNTS if one.kind == kind}


def test_the_branches_hold_what_the_design_says() -> None:
    assert of_kind("effective") == {"effective"}
    assert of_kind("start") == set(START.split())
    assert of_kind("in_loop") == set(IN_LOOP.split())
    assert of_kind("shutdown") == set(SHUTDOWN.split())
    assert of_kind("recover") == {"detect", "restart_gap", "regroup"}
    assert of_kind("unsaved") == {"unsaved", "refused"}
    assert of_kind("unattributed") == {"unattributed"}
    assert {one.kind for one in ACCOUNTS} == set(GROUPS) == set(GROUP_COLOURS)


def test_the_page_on_accounts_lists_every_account() -> None:
    page = Path(__file__).parents[2] / "docs" / "accounts.md"
    table = page.read_text(encoding="utf-8").partition("## Rules")[0]
    assert set(NAMES) - set(re.findall(r"\w+", table)) == set()


def test_every_account_has_one_name_one_number_one_colour_and_a_meaning() -> None:
    assert len({one.name for one in ACCOUNTS}) == len(ACCOUNTS) == len(NAMES)
    assert len({one.colour for one in ACCOUNTS}) == len(ACCOUNTS)
    assert all(one.meaning.endswith(".") for one in ACCOUNTS)
    assert [INDEX[name] for name in NAMES] == list(range(len(NAMES)))


def test_accounts_that_the_ledger_derives_cannot_be_recorded() -> None:
    assert set(RECORDABLE) == {*f"{START} {IN_LOOP} {SHUTDOWN}".split(), "regroup", "refused"}
    concluded = set(NAMES) - RECORDABLE
    assert concluded == {"effective", "detect", "restart_gap", "unsaved", "unattributed"}
    assert not any(map(is_recordable, concluded))
    assert all(map(is_recordable, RECORDABLE))


@pytest.mark.parametrize("name", ["x-a", "x-A_9", "x-1", "x-_"])
def test_a_users_own_account(name: str) -> None:
    assert is_own(name)
    assert is_recordable(name)
    assert account(name).name == name
    assert account(name).colour not in {one.colour for one in ACCOUNTS}


@pytest.mark.parametrize("name", ["x-", "x-a b", "x-é", "x-a\n", "X-a", "a", "", "x_a", "xx-a"])
def test_what_is_no_account(name: str) -> None:
    assert not is_own(name)
    assert not is_recordable(name)


def test_an_account_is_found_by_its_name() -> None:
    assert account("imports") is BY_NAME["imports"]
    with pytest.raises(KeyError):
        account("import")
