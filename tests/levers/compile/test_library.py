"""Archives in a library: the exact one, else the nearest; published atomically and once."""

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
from archives import ENVIRONMENT, KEY, OTHER_KEY, WORDS, forged, graph, library_file, row

from torchett.levers.compile.cache.archive import Entry, RefusedError, identity, pack
from torchett.levers.compile.cache.environment import Environment
from torchett.levers.compile.cache.library import Addition, Library
from torchett.store import open_store


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(open_store(str(tmp_path / "library")), KEY)


def publish(
    library: Library, *entries: Entry, env: Environment = ENVIRONMENT, known: tuple[str, ...] = ()
) -> str | None:
    added = Addition(entries=entries, known={("inductor", letter * 52) for letter in known})
    return library.publish(env.words(), env.key, added)[0]


def names(library: Library, env: Environment = ENVIRONMENT) -> list[tuple[str, int]]:
    found = library.nearest(env)
    assert found is not None
    return sorted((one.name[0], one.size) for one in library.find(env, found[0]).entries)


def test_a_published_archive_is_found(library: Library) -> None:
    assert library.nearest(ENVIRONMENT) is None
    publish(library, graph("a"), library_file("b"))
    found = library.nearest(ENVIRONMENT)
    assert found is not None
    assert found[1] is True
    assert names(library) == [("a", 5), ("b", 4)]


def test_the_nearest_is_found_if_there_is_no_exact_one(library: Library) -> None:
    far = replace(ENVIRONMENT, threads="64", workload="other.py")
    near = replace(ENVIRONMENT, threads="64")
    useless = replace(ENVIRONMENT, torch="2.12.0 def")
    for env, letter in ((far, "f"), (near, "n"), (useless, "u")):
        publish(library, graph(letter), env=env)
    found = library.nearest(ENVIRONMENT)
    assert found is not None
    assert found[1] is False
    assert names(library) == [("n", 5)]
    assert library.nearest(replace(ENVIRONMENT, gpu="NVIDIA H200 sm90")) is None


def test_publishing_adds_to_what_is_there_and_leaves_one_archive(library: Library) -> None:
    first = publish(library, graph("a"))
    assert publish(library, graph("a")) is None
    second = publish(library, graph("b"))
    assert first != second
    assert names(library) == [("a", 5), ("b", 5)]
    assert [name for name in library.store.names() if name.endswith(".ett")] == [
        f"{ENVIRONMENT.key}/{second}.ett"
    ]


def test_a_graph_two_jobs_compiled_at_once_is_kept_once(library: Library) -> None:
    publish(library, graph("a", b"as one job pickled it"))
    assert publish(library, graph("a", b"as another did")) is None


def test_a_graph_for_other_shapes_is_added(library: Library) -> None:
    """The job had a graph of that name and compiled another: the first did not fit its shapes."""
    publish(library, graph("a"))
    publish(library, graph("a"), graph("a", b"other shapes"), known=("a",))
    assert names(library) == [("a", 5), ("a", 12)]


def test_a_library_of_others_is_not_written_without_a_key(library: Library) -> None:
    with pytest.raises(RefusedError, match="set ETT_CACHE_KEY"):
        publish(Library(library.store, None), graph("a"))


def test_an_archive_that_is_refused_is_replaced(library: Library) -> None:
    publish(Library(library.store, OTHER_KEY), graph("x"))
    with pytest.raises(RefusedError, match="signed with key"):
        names(library)
    publish(library, graph("a"))
    assert names(library) == [("a", 5)]


def test_an_archive_of_another_torch_under_our_key_is_stale(library: Library) -> None:
    made, stored = row("inductor", "a" * 52, b"data")
    data = forged([made], stored, environment=WORDS | {"torch": "2.12.0 def"})
    library.put(ENVIRONMENT.key, WORDS, data, 1)
    with pytest.raises(RefusedError, match=r"stale: made with torch '2\.12\.0 def'"):
        names(library)


def test_a_head_that_points_elsewhere_is_refused(library: Library) -> None:
    publish(library, graph("a"))
    store, key = library.store, ENVIRONMENT.key
    for head in (b"{}", b"[]", b"not json", b'{"archive": "../../x"}'):
        store.write(f"{key}/head.json", head)
        assert library.nearest(ENVIRONMENT) is None


def test_gc_deletes_old_archives_and_those_without_a_head(library: Library) -> None:
    publish(library, graph("a"))
    orphan = pack(WORDS, [graph("z")], KEY)
    library.store.write(f"{ENVIRONMENT.key}/{identity(orphan)}.ett", orphan)
    head = library.head(ENVIRONMENT.key)
    assert head is not None
    gone = library.gc(older_than_s=100, now_s=head.made_s + 50)
    assert gone == [f"{ENVIRONMENT.key}/{identity(orphan)}.ett"]
    assert names(library) == [("a", 5)]
    library.gc(older_than_s=100, now_s=head.made_s + 200)
    assert library.store.names() == []


def _publisher(folder: str, letter: str, ready: object) -> None:
    library = Library(open_store(folder), KEY)
    ready.wait()  # type: ignore[attr-defined]
    publish(library, graph("s", letter.encode() * 9), graph(letter), library_file("f"))


def test_eight_processes_that_publish_at_once_leave_one_good_archive(library: Library) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(8)
    folder = library.store.url.removeprefix("file://")
    processes = [
        context.Process(target=_publisher, args=(folder, letter, ready)) for letter in "abcdeghi"
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    archives = [name for name in library.store.names() if name.endswith(".ett")]
    assert len(archives) == 1
    assert names(library) == [*((letter, 5) for letter in "abcde"), ("f", 4),
                              *((letter, 5) for letter in "ghi"), ("s", 9)]  # fmt: skip
