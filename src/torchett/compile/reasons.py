"""Why a graph could not be used again: the failed guard, put into one of a few kinds.

0/1: tensor 'x' size mismatch at index 0. expected 8, actual 12     size, L['x'], dimension 0
0/2: scale == 2                                                     number, L['scale']
0/0: ___check_obj_id(fn, 140439264606080)                           object
0/3: 2 <= x.size()[0] <= 256                                        range
"""

import ast
import re
from dataclasses import dataclass
from typing import Final, Literal

from torchett.compile.sources import unstripped

Kind = Literal[
    "size", "number", "duck", "zero_one", "range", "branch", "stride", "rank", "dtype",
    "grad_mode", "global_state", "object", "type", "structure", "constant", "float", "attribute",
    "alias", "backend", "released", "limit", "unknown",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cause:
    """A kind of reason: what it is, whether dynamic sources cure it, what else to do."""

    title: str
    cured: bool
    advice: str


CAUSES: Final[dict[Kind, Cause]] = {
    "size": Cause("a size changed", True, "make the dimension dynamic from the start"),
    "number": Cause("a number changed", True, "make the number dynamic from the start"),
    "duck": Cause(
        "two sizes that were equal are not any more",
        True,
        "make both dynamic: torch takes equal sizes for one",
    ),
    "zero_one": Cause(
        "a size is 0 or 1",
        False,
        "torch compiles 0 and 1 apart, always: pad or drop such batches (drop_last=True), or list"
        " the source in TORCH_COMPILE_UNBACKED_SOURCES",
    ),
    "range": Cause(
        "a size left the range a graph is good for",
        False,
        "the code or the backend chose by the size: keep sizes within the range, or accept one"
        " graph a range; run the outermost sizes in warm-up",
    ),
    "branch": Cause(
        "a condition on sizes changed",
        False,
        "the code takes another path: a graph for each is the least; move the condition out of"
        " the compiled function or use torch.cond",
    ),
    "stride": Cause(
        "a tensor is laid out differently",
        False,
        "make its layout the same before the call: .clone(memory_format=torch.contiguous_format)"
        " (.contiguous() leaves the stride of a dimension of size 1 as it is)",
    ),
    "rank": Cause(
        "a tensor has another number of dimensions",
        False,
        "that is another graph; give it the same number of dimensions (unsqueeze, flatten)",
    ),
    "dtype": Cause(
        "another dtype, device or kind of tensor, or requires_grad",
        False,
        "that is another graph; convert before the call if it is not meant",
    ),
    "grad_mode": Cause(
        "gradients on or off",
        False,
        "training and evaluation need a graph each; compile evaluation as a function of its own",
    ),
    "global_state": Cause(
        "a global setting of torch changed",
        False,
        "set autocast, default dtype, threads and determinism once, before the first call",
    ),
    "object": Cause(
        "another object was passed or captured",
        False,
        "guarded by identity: pass the same object again, do not make functions, partials or"
        " modules anew for each call",
    ),
    "type": Cause("an object of another type", False, "pass the same types in each call"),
    "structure": Cause(
        "a list or dict has another length or other keys",
        False,
        "that is another graph for each; pass a tensor, pad the list, or keep the keys",
    ),
    "constant": Cause(
        "a flag or a text changed",
        False,
        "each value is another graph; compile a function for each, or make it a tensor",
    ),
    "float": Cause(
        "a float changed",
        False,
        "dynamic sources hold for whole numbers; pass the float as a 0-d tensor",
    ),
    "attribute": Cause(
        "an attribute or a global changed",
        False,
        "do not change it between calls, or make it a tensor (a buffer)",
    ),
    "alias": Cause(
        "one tensor was passed twice, or no longer is",
        False,
        "pass distinct tensors (.clone()) or always the same one",
    ),
    "backend": Cause(
        "compiled by another backend object",
        False,
        "make the backend once and use it again, not a new function each time",
    ),
    "released": Cause(
        "what a graph was made for is gone",
        False,
        "keep the module or object alive between calls",
    ),
    "limit": Cause(
        "the recompile limit was hit: the function runs uncompiled from here on",
        False,
        "cure the causes above; else raise torch._dynamo.config.recompile_limit",
    ),
    "unknown": Cause("no reason was given", False, "see TORCH_LOGS=recompiles_verbose"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A failed guard, understood."""

    kind: Kind
    text: str
    source: str | None = None
    dim: int | None = None
    by: str | None = None  # where torch chose by a size: FILE:LINE in FUNCTION


_SIZE = re.compile(
    r"tensor '(?P<name>.+)' size mismatch at index (?P<dim>\d+)\."
    r" expected (?P<expected>\d+), actual (?P<actual>\d+)"
)
_TENSOR = re.compile(
    r"tensor '(?P<name>.+)' (?P<what>stride|rank|dtype|device|requires_grad|dispatch)\b"
)
_CLASS = re.compile(r"expected type of '(?P<name>.+)' to be a tensor type")
_CALL = re.compile(r"___check_(?P<what>obj_id|type_id)\((?P<name>.+), \d+\)")
_EQUAL = re.compile(r"(?P<left>.+?) (?:==|is) (?P<right>.+)", re.DOTALL)
_DIM = re.compile(r"(?P<name>[\w.\[\]'\"]+)\.(?:size|stride)\(\)\[(?P<dim>\d+)\]")
_BOUNDS = re.compile(
    r"(?:(?P<least>\d+) <= )?(?P<name>[^\s<>=]+)\.size\(\)\[(?P<dim>\d+)\](?: <= (?P<most>\d+))?"
)
_BY = re.compile(r"\((?P<by>_\w+/[\w/]+\.py:\d+ in \w+)\)")
_ID = re.compile(r"(?P<id>[\w!]+/(?P<number>\d+)(?:_\d+)?): ")


_CLOSE: Final[frozenset[Kind]] = frozenset(
    {"size", "number", "duck", "zero_one", "range", "branch", "float"}
)


def explained(reasons: tuple[str, ...], failed: str | None = None) -> Reason:
    """Why there was another compile, by what the nearest of the graphs there were said.

    A graph whose guard failed on a size or a number fits in all else, so it is nearer than one
    of another structure. Of those the newest allows most: what differed once is dynamic in it.
    """
    if is_limit(failed):
        return Reason(kind="limit", text=(failed or "").partition("\n")[0])
    if not reasons:
        return Reason(kind="unknown", text="")
    found = [_one(reason, reasons) for reason in sorted(reasons, key=_number, reverse=True)]
    return next((reason for reason in found if reason.kind in _CLOSE), found[0])


def is_limit(failed: str | None) -> bool:
    """Whether a compile failed because there had been too many of them."""
    words = ("recompile_limit", "cache_size_limit", "Hard failure due to f")
    return failed is not None and any(word in failed for word in words)


def _one(reason: str, reasons: tuple[str, ...]) -> Reason:
    """One failed guard among those of a compile."""
    head, text = without_id(reason), bare(reason)
    if found := _SIZE.match(text):
        zero_one = {int(found["expected"]), int(found["actual"])} & {0, 1}
        return Reason(
            kind="zero_one" if zero_one else "size",
            text=text,
            source=unstripped(found["name"]),
            dim=int(found["dim"]),
        )
    if found := _TENSOR.match(text):
        kind: Kind = "dtype"
        if found["what"] in ("stride", "rank"):
            kind = "stride" if found["what"] == "stride" else "rank"
        return Reason(kind=kind, text=text, source=unstripped(found["name"]))
    if found := _CLASS.match(text):
        return Reason(kind="dtype", text=text, source=unstripped(found["name"]))
    if text.startswith("GLOBAL_STATE") or "check_global_state" in text:
        state: Kind = "grad_mode" if "grad_mode" in text else "global_state"
        return Reason(kind=state, text=text)
    if found := _CALL.match(text):
        name = found["name"]
        kind = "object" if found["what"] == "obj_id" else "type"
        if name.endswith(".training"):
            kind = "attribute"
        return Reason(kind=kind, text=text, source=unstripped(name))
    for word, known in _WORDS:
        if word in text:
            return Reason(kind=known, text=text)
    if ".size()" in text or ".stride()" in text or "storage_offset" in text:
        return _about_sizes(text, head, reasons)
    if found := _EQUAL.fullmatch(text):
        left = found["left"].strip()
        kind = _constant_kind(left, found["right"].strip())
        return Reason(kind=kind, text=text, source=unstripped(left))
    return Reason(kind="unknown", text=text)


_WORDS: Final[tuple[tuple[str, Kind], ...]] = (
    ("Duplicate tensor", "alias"),
    ("BACKEND_MATCH", "backend"),
    ("check_current_backend", "backend"),
    ("torch_function_mode_stack", "global_state"),
    ("CURRENT_DEVICE", "global_state"),
    ("deallocated", "released"),
    ("invalidated", "released"),
    ("Unable to find", "unknown"),
    ("Unexpected recompilation", "unknown"),
    ("len(", "structure"),
    ("dict.keys(", "structure"),
    ("___dict_contains", "structure"),
    ("__contains__", "structure"),
    ("___key_order_guard", "structure"),
    ("hasattr(", "attribute"),
)


def _about_sizes(text: str, head: str, reasons: tuple[str, ...]) -> Reason:
    """A guard on symbols: duck sizing, 0/1, a range or a condition."""
    found = _DIM.search(text)
    source = unstripped(found["name"]) if found else None
    dim = int(found["dim"]) if found else None
    kind: Kind = "branch"
    if "duck sizing" in head:
        kind = "duck"
    elif ".stride()" in text:
        kind = "stride"
    elif bounds := _BOUNDS.fullmatch(text):
        # Torch blames 0/1 specialisation whichever end gave way: ask what the size was.
        actual = _actual(bounds["name"], int(bounds["dim"]), reasons)
        least, most = bounds["least"], bounds["most"]
        low = actual < int(least) if actual is not None and least else not most
        kind = "zero_one" if low and least and int(least) <= 2 else "range"
    chose = _BY.findall(head)
    return Reason(kind=kind, text=text, source=source, dim=dim, by=chose[-1] if chose else None)


def _actual(name: str, dim: int, reasons: tuple[str, ...]) -> int | None:
    """The size that was met, as another graph's failed guard tells it."""
    for reason in reasons:
        found = _SIZE.match(bare(reason))
        if found and found["name"] == name and int(found["dim"]) == dim:
            return int(found["actual"])
    return None


def _constant_kind(left: str, right: str) -> Kind:
    """What kind of value was compared with a constant."""
    try:
        value = ast.literal_eval(right)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return "constant"
    if type(value) is int:
        return "number"
    if type(value) is float:
        return "float"
    return "attribute" if "." in left or left.startswith("G[") else "constant"


def _number(reason: str) -> int:
    found = _ID.match(reason)
    return int(found["number"]) if found else -1


def without_id(reason: str) -> str:
    """The reason without the graph it is about."""
    found = _ID.match(reason)
    return reason[found.end() :] if found else reason


def bare(reason: str) -> str:
    """The guard alone: no graph, no user's code, no stack, no hint."""
    head = without_id(reason).partition("\n")[0]
    head = re.split(r"\s+# |\s{3,}", head, maxsplit=1)[0].strip()
    return re.sub(r", type=<class .*", "", head)
