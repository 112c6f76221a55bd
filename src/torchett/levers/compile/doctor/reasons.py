"""Why a graph could not be used again: failed guards, each classified into a kind.

0/1: tensor 'x' size mismatch at index 0. expected 8, actual 12     size, L['x'], dimension 0
0/2: scale == 2                                                     number, L['scale']
0/0: ___check_obj_id(fn, 140439264606080)                           object
0/3: 2 <= x.size()[0] <= 256                                        range
"""

import ast
import re
from dataclasses import dataclass
from typing import Final, Literal

from torchett.levers.compile.doctor.sources import unstripped

Kind = Literal[
    "size", "number", "duck", "zero_one", "range", "branch", "stride", "rank", "dtype",
    "grad_mode", "global_state", "object", "type", "structure", "constant", "float", "attribute",
    "alias", "backend", "released", "limit", "unknown",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cause:
    """A kind of reason: its title, whether dynamic sources prevent it, and what else to do."""

    title: str
    cured: bool
    advice: str


CAUSES: Final[dict[Kind, Cause]] = {
    "size": Cause("a size changed", True, "make the dimension dynamic from the start"),
    "number": Cause("a number changed", True, "make the number dynamic from the start"),
    "duck": Cause(
        "two sizes are no longer equal",
        True,
        "make both dynamic: torch treats equal sizes as one symbol",
    ),
    "zero_one": Cause(
        "a size is 0 or 1",
        False,
        "torch always compiles 0 and 1 separately: pad or drop such batches (drop_last=True), or"
        " list the source in TORCH_COMPILE_UNBACKED_SOURCES",
    ),
    "range": Cause(
        "a size is outside the range of the graph",
        False,
        "the code or the backend branches on the size: keep sizes within the range, or accept one"
        " graph for each range; run the smallest and largest sizes in warm-up",
    ),
    "branch": Cause(
        "a condition on sizes changed",
        False,
        "the code takes another path, and each path needs a graph; move the condition out of the"
        " compiled function or use torch.cond",
    ),
    "stride": Cause(
        "a tensor has other strides",
        False,
        "make the strides equal before the call: .clone(memory_format=torch.contiguous_format)"
        " (.contiguous() does not change the stride of a dimension of size 1)",
    ),
    "rank": Cause(
        "a tensor has another number of dimensions",
        False,
        "each number of dimensions needs a graph; make it the same (unsqueeze, flatten)",
    ),
    "dtype": Cause(
        "another dtype, device or kind of tensor, or requires_grad",
        False,
        "each of them needs a graph; convert before the call if the change is not intended",
    ),
    "grad_mode": Cause(
        "gradients on or off",
        False,
        "training and evaluation need a graph each; compile evaluation as a separate function",
    ),
    "global_state": Cause(
        "a global setting of torch changed",
        False,
        "set autocast, default dtype, threads and determinism once, before the first call",
    ),
    "object": Cause(
        "another object was passed or captured",
        False,
        "the guard checks identity: pass the same object again; do not make new functions, partials"
        " or modules for each call",
    ),
    "type": Cause("an object of another type", False, "pass the same types in each call"),
    "structure": Cause(
        "a list or dict has another length or other keys",
        False,
        "each length or set of keys needs a graph; pass a tensor, pad the list, or keep the keys",
    ),
    "constant": Cause(
        "a flag or a string changed",
        False,
        "each value needs a graph; compile a function for each, or make it a tensor",
    ),
    "float": Cause(
        "a float changed",
        False,
        "dynamic sources work for integers only; pass the float as a 0-d tensor",
    ),
    "attribute": Cause(
        "an attribute or a global changed",
        False,
        "do not change it between calls, or make it a tensor (a buffer)",
    ),
    "alias": Cause(
        "one tensor was passed twice, or is no longer passed twice",
        False,
        "pass distinct tensors (.clone()) or always the same one",
    ),
    "backend": Cause(
        "compiled by another backend object",
        False,
        "make the backend function once and use it again",
    ),
    "released": Cause(
        "an object that the graph was compiled for is freed",
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
    """A classified guard."""

    kind: Kind
    text: str
    source: str | None = None
    dim: int | None = None
    by: str | None = None  # where torch branched on a size: FILE:LINE in FUNCTION


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
    """Why there was another compile: the failed guard of the nearest existing graph.

    A graph that failed on a size or a number fits in all else, so it is nearer than a graph of
    another structure. Among these the newest is used: it has the most dynamic sizes.
    """
    if is_limit(failed):
        return Reason(kind="limit", text=(failed or "").partition("\n")[0])
    if not reasons:
        return Reason(kind="unknown", text="")
    found = [_one(reason, reasons) for reason in sorted(reasons, key=_number, reverse=True)]
    return next((reason for reason in found if reason.kind in _CLOSE), found[0])


def is_limit(failed: str | None) -> bool:
    """Whether a compile failed because of torch's recompile limit."""
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
        # Torch reports 0/1 specialization for both ends of a range: compare with the actual size.
        actual = _actual(bounds["name"], int(bounds["dim"]), reasons)
        least, most = bounds["least"], bounds["most"]
        low = actual < int(least) if actual is not None and least else not most
        kind = "zero_one" if low and least and int(least) <= 2 else "range"
    chose = _BY.findall(head)
    return Reason(kind=kind, text=text, source=source, dim=dim, by=chose[-1] if chose else None)


def _actual(name: str, dim: int, reasons: tuple[str, ...]) -> int | None:
    """The actual size, from another graph's failed guard."""
    for reason in reasons:
        found = _SIZE.match(bare(reason))
        if found and found["name"] == name and int(found["dim"]) == dim:
            return int(found["actual"])
    return None


def _constant_kind(left: str, right: str) -> Kind:
    """The kind of a comparison with a constant."""
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
    """The reason without the id of its graph."""
    found = _ID.match(reason)
    return reason[found.end() :] if found else reason


def bare(reason: str) -> str:
    """The guard alone: without the graph's id, user code, stack and hint."""
    head = without_id(reason).partition("\n")[0]
    head = re.split(r"\s+# |\s{3,}", head, maxsplit=1)[0].strip()
    return re.sub(r", type=<class .*", "", head)
