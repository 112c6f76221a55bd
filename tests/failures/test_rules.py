"""The table of rules: each row is sound, fits its example, and is more than a copy of one text."""

import re
from pathlib import Path

import pytest

from torchett.failures import Outlook, Rule, classify, read_rules, rules_with, shipped_rules
from torchett.failures.literals import required_texts
from torchett.failures.vocabulary import OUTLOOKS, UNKNOWN
from torchett.model.causes import CAUSES
from torchett.model.errors import InputError

RULES = shipped_rules()


def test_every_category_of_the_ledger_has_a_rule_and_an_outlook() -> None:
    assert set(OUTLOOKS) == {*CAUSES, UNKNOWN}
    assert {rule.category for rule in RULES} == {*CAUSES, UNKNOWN}


def test_names_are_unique_and_sources_are_given() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert [rule.name for rule in RULES if not rule.source] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_an_example_is_classified_by_its_rule(rule: Rule) -> None:
    verdict = classify(rule.example)
    assert verdict.evidence is not None
    assert verdict.evidence.rule.name == rule.name
    assert verdict.category == rule.category
    assert verdict.outlook is rule.outlook


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_fits_its_example_with_other_names_and_numbers(rule: Rule) -> None:
    """No rule is a copy of its example: names of hosts and files, and numbers, may differ."""
    kept = re.compile(
        r"\bXid\b.{0,40}?\d+,|exitcode\s*: -?\d+|Errno \d+|Exit Code: *\d+|exit code \d+"
        r"|error \d+, opcode|signal: \d+|Uncorrected|Signal \d+|mlx\d|Errors?\(s\)"
    )
    guarded = [match.span() for match in kept.finditer(rule.example)]

    def other(match: "re.Match[str]") -> str:
        if any(start <= match.start() < end for start, end in guarded):
            return match[0]
        return str((int(match[0]) + 1) % 10 ** len(match[0])).zfill(len(match[0]))

    changed = re.sub(r"(?<![\w.-])\d+(?![\w.-])", other, rule.example)
    changed = (
        changed.replace("gpu", "box").replace("node1", "host9") if "gpu-" in changed else changed
    )
    verdict = classify(changed)
    assert verdict.category == rule.category


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_pattern_fits_only_lines_with_a_text_that_it_requires(rule: Rule) -> None:
    for pattern in rule.patterns:
        if pattern.regex.search(rule.example) and pattern.texts:
            assert any(text in rule.example.lower() for text in pattern.texts)


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("Watchdog caught (?:collective )?operation", ("watchdog caught ",)),
        (r"(?:disk|volume)\S* is full", (" is full",)),
        ("ESTALE|Stale handle", ("estale", "stale handle")),
        (r"error[s]? \d+", ("error",)),
        (r"colou?r", ("colo",)),
        (r"a\(b\)c", ("a(b)c",)),
        (r"(?:out|off) \w", ("out", "off")),
        (r"[^|]\d+", ()),
        (r"x|.", ()),
        (r"(?-i:OOMKilled)", ("oomkilled",)),
        (r"ab{2,3}cdef", ("cdef",)),
    ],
)
def test_texts_that_a_pattern_requires(pattern: str, texts: tuple[str, ...]) -> None:
    assert required_texts(pattern) == texts


def test_rules_of_users_are_tried_first(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        'system = "cluster"\n[[rule]]\nname = "burst-buffer"\ncategory = "storage_io"\n'
        "pattern = ['burst buffer .* lost']\noutlook = \"replace-node\"\n"
        '[[rule]]\nname = "ours"\ncategory = "node_failure"\npattern = \'CUDA out of memory\'\n'
    )
    rules = rules_with([own])
    found = classify("IOError: burst buffer bb-7 lost", rules=rules)
    assert (found.category, found.outlook) == ("storage_io", Outlook.REPLACE_NODE)
    assert classify("CUDA out of memory", rules=rules).category == "node_failure"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rule = 3", "expected [[rule]] rows"),
        ("", "expected [[rule]] rows"),
        ("[[rule]", "expected rules in TOML"),
        ('[[rule]]\nname="a"\ncategory="wrong"\npattern="x"', "unknown category wrong"),
        ('[[rule]]\nname="a"\ncategory="nan_loss"\npattern="("', "not a regular expression"),
        ('[[rule]]\nname="a"\ncategory="nan_loss"', "expected pattern"),
        (
            '[[rule]]\nname="a"\ncategory="nan_loss"\npattern="x"\nrole="boss"',
            "unknown role 'boss'",
        ),
        ('[[rule]]\nname="a"\ncategory="nan_loss"\npattern="x"\nlevel=1', "unknown key level"),
        ('xid = [{code = "7"}]', "expected code, name, bucket"),
    ],
)
def test_bad_rules_are_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_rules(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value).replace(str(error.value.__cause__), "")
