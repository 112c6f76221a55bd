"""torch.compile's names of inputs, and TORCH_COMPILE_DYNAMIC_SOURCES made from them.

    L['x']                      a local: an argument of the compiled function
    L['batch']['my-key'][0]     a part of one
    G['scale']                  a global
    L['self'].scale             an attribute

Torch reads the variable as a list of patterns: it removes spaces, splits at commas, and matches
each pattern from the start of a name. So a name is escaped and ends with `$`. A space or comma in
it becomes `.`, which matches any character.
"""

import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

DYNAMIC = "TORCH_COMPILE_DYNAMIC_SOURCES"
UNBACKED = "TORCH_COMPILE_UNBACKED_SOURCES"

Dims = list[int] | None  # for a tensor: dimensions, or [] for all; for a number: None


def pattern(name: str) -> str:
    """A pattern that matches this source, and is parsed as one entry."""
    return "".join("." if c in ", \t\n\r\f\v" else re.escape(c) for c in name) + "$"


def render(sources: Mapping[str, Dims], *, by_dimension: bool) -> str:
    """The variable's value; without `by_dimension` all dimensions of a tensor are dynamic."""
    entries = []
    for name, dims in sorted(sources.items()):
        if dims and by_dimension:
            entries += [f"{pattern(name)}:{dim}" for dim in dims]
        else:
            entries.append(pattern(name))
    return ",".join(entries)


def takes_dimensions() -> bool:
    """Whether the installed torch supports `SOURCE:DIMENSION`; torch is not imported."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return False
    builder = Path(found.origin).parent / "_dynamo" / "variables" / "builder.py"
    try:
        return "_DIM_SUFFIX_RE" in builder.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def joined(*lists: str | None) -> str:
    """Several values of the variable in one, each entry once."""
    entries = [entry for text in lists if text for entry in text.split(",") if entry.strip()]
    return ",".join(dict.fromkeys(entries))


def merged(maps: Iterable[Mapping[str, Dims]]) -> dict[str, Dims]:
    """All sources of several maps; a tensor gets the dimensions of all."""
    found: dict[str, Dims] = {}
    for sources in maps:
        for name, dims in sources.items():
            known = found.get(name)
            if name not in found or known is None:
                found[name] = dims
            elif dims is not None:
                found[name] = sorted({*known, *dims}) if known and dims else []
    return found


_LOCAL = re.compile(r"(?P<local>[^\W\d]\w*)(?P<rest>.*)", re.DOTALL)


def unstripped(shown: str) -> str:
    """The source for a name in a reason, where torch leaves L[…] out: x.y → L['x'].y."""
    shown = shown.strip()
    if shown.startswith(("L[", "G[")):
        return shown
    found = _LOCAL.fullmatch(shown)
    return f"L[{found['local']!r}]{found['rest']}" if found else shown
