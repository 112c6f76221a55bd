"""The report's lines on the library."""

from typing import Any

from torchett.levers.compile.cache.report import cache_lines

LOAD: dict[str, Any] = {
    "event": "load",
    "match": "exact",
    "archive": "f8d0b3d3855f",
    "bytes": 140_068,
    "download_s": 0.01,
    "install_s": 0.08,
}
SETTLE: dict[str, Any] = {"event": "settle", "hits": 1, "misses": 0, "bypasses": 0}


def test_there_is_one_line_for_each_attempt() -> None:
    cold = {"event": "load", "match": "none", "reason": ""}
    refused = {"event": "load", "match": "none", "reason": "not signed: set ETT_CACHE_KEY"}
    facts = [
        (0, 0, cold),
        (0, 0, SETTLE | {"hits": 0, "misses": 1, "published": "f8d0b3d3855f"}),
        (1, 0, LOAD),
        (1, 1, LOAD),
        (1, 0, SETTLE),
        (1, 1, SETTLE),
        (2, 0, refused),
        (2, 1, LOAD),
        (2, 0, SETTLE | {"hits": 0, "bypasses": 2, "reason": "OSError: disk full"}),
    ]
    assert cache_lines(facts) == [
        "compile cache, attempt 0: no archive yet; 0 hits, 1 misses; published f8d0b3d3",
        "compile cache, attempt 1: archive f8d0b3d3 (exact, 0.1 MB, 0.09 s); 2 hits",
        "compile cache, attempt 2: compiled cold by 1 of 2 ranks, not signed: set ETT_CACHE_KEY;"
        " 0 hits, 2 bypasses; not kept: OSError: disk full",
    ]


def test_a_job_without_a_library_has_no_line() -> None:
    assert cache_lines([]) == []
