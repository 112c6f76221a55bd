"""`ett compile`: what compiling costs, and what of it is kept. Other modules add their commands."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchett.cli.compile.doctor import doctor, kernels
from torchett.cli.output import (
    json_option,
    print_json,
    print_result,
    print_rich,
    speaks_plainly,
)
from torchett.model.errors import InputError

if TYPE_CHECKING:
    from torchett.levers.compile.cache.archive import Archive
    from torchett.levers.compile.cache.library import Head, Library
    from torchett.levers.compile.cache.signing import Key
    from torchett.store import Store


@click.group("compile")
def compile_() -> None:
    """Compile once, reuse everywhere, recompile never."""


@compile_.group()
def cache() -> None:
    """List, check, copy and delete archives of compiled code.

    `ett run --compile-cache` makes and uses them.
    """


_key_file = click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    help="Key that the archive was signed with, if it comes from another library: OLD/.key.",
)


@cache.command("ls")
@click.argument("url")
@json_option
@speaks_plainly
def ls(url: str, as_json: bool) -> None:
    """List the archives of a library."""
    heads = _library(url).heads()
    if as_json:
        print_json({"url": url, "archives": [_head_json(head) for head in heads]})
        return
    from rich.table import Table

    table = Table("key", "workload", "torch", "on", "threads", "entries", "MB", "made", box=None)
    for head in heads:
        words = head.environment
        device = words.get("gpu") or words.get("isa", "")
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(head.made_s))
        table.add_row(
            *(head.key, words.get("workload", ""), words.get("torch", "").split(" ")[0], device),
            *(words.get("threads", ""), str(head.entries), f"{head.size / 1e6:.1f}", made),
        )
    print_rich(table if heads else f"{url}: no archives")


@cache.command("show")
@click.argument("url")
@click.argument("key", required=False)
@_key_file
@json_option
@speaks_plainly
def show(url: str, key: str | None, key_file: Path | None, as_json: bool) -> None:
    """Show what is in an archive.

    Give a FILE, or the URL of a library and a KEY (its first characters are enough).
    """
    archive, size = _archive(url, key, key_file)
    kinds: dict[str, list[int]] = {}
    for one in archive.entries:
        kinds.setdefault(one.kind, []).append(one.size)
    if as_json:
        entries = [
            {"kind": e.kind, "name": e.name, "bytes": e.size, "sha256": e.sha256}
            for e in archive.entries
        ]
        print_json(
            {
                "environment": dict(archive.environment),
                "made_s": archive.made_s,
                "signed_by": archive.made_by,
                "bytes": size,
                "entries": entries,
            }
        )
        return
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for name, word in archive.environment.items():
        table.add_row(name, word)
    table.add_row("signed by key", archive.made_by or "–")
    table.add_row("size", f"{size / 1e6:.1f} MB, {archive.raw_bytes / 1e6:.1f} MB unpacked")
    for kind, sizes in sorted(kinds.items()):
        table.add_row(kind, f"{len(sizes)} entries, {sum(sizes) / 1e6:.2f} MB")
    print_rich(table)


@cache.command("pull")
@click.argument("url")
@click.argument("key")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@speaks_plainly
def pull(url: str, key: str, file: Path, as_json: bool) -> None:
    """Check an archive and copy it into FILE."""
    from torchett.levers.compile.cache.archive import contents, unpack
    from torchett.runs.output_files import write_bytes

    library = _library(url)
    head = _head(library, key)
    data = _read(library, head)
    contents(unpack(data, library.key))
    write_bytes(file, data, durable=True)
    pulled = {"url": url, "key": head.key, "file": str(file), "bytes": len(data)}
    print_result(pulled, f"{file}: {len(data) / 1e6:.1f} MB", as_json)


@cache.command("push")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("url")
@_key_file
@json_option
@speaks_plainly
def push(file: Path, url: str, key_file: Path | None, as_json: bool) -> None:
    """Add the archive in FILE to a library, signed with the library's key."""
    from torchett.levers.compile.cache.archive import contents
    from torchett.levers.compile.cache.library import Addition, Library, environment_of
    from torchett.levers.compile.cache.signing import key_for

    store = _store(url)
    archive, _ = _file(file, key_file, key_for(store, os.environ))
    contents(archive)
    words = archive.environment
    key = environment_of(words).key
    added = Addition(entries=archive.entries, known={e.identity[:2] for e in archive.entries})
    library = Library(store, key_for(store, os.environ, create=True))
    name, why = library.publish(words, key, added)
    pushed = {"url": url, "archive": name, "reason": None if name else why}
    print_result(pushed, f"{url}: {name or why}", as_json)


@cache.command("merge")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="The archive to write.",
)
@_key_file
@json_option
@speaks_plainly
def merge(files: tuple[Path, ...], output: Path, key_file: Path | None, as_json: bool) -> None:
    """Make one archive that holds the entries of several."""
    from torchett.levers.compile.cache import archive as archives
    from torchett.levers.compile.cache.environment import stale
    from torchett.levers.compile.cache.library import environment_of
    from torchett.runs.output_files import write_bytes

    key = _key(files[0], key_file)
    if key is None:
        from torchett.levers.compile.cache.signing import HOW

        raise InputError(f"{output} could not be signed: {HOW}, or give --key-file OLD/.key")
    found = [(file, _file(file, key_file, key)[0]) for file in files]
    first = environment_of(found[0][1].environment)
    for file, archive in found:
        archives.contents(archive)
        if reason := stale(first, archive.environment):
            raise InputError(f"{file} does not go with {files[0]}: {reason}")
    entries = archives.merge([archive.entries for _, archive in found])
    data = archives.pack(found[0][1].environment, entries, key)
    write_bytes(output, data, durable=True)
    made = {"file": str(output), "entries": len(entries), "bytes": len(data)}
    print_result(made, f"{output}: {len(entries)} entries, {len(data) / 1e6:.1f} MB", as_json)


@cache.command("verify")
@click.argument("url")
@_key_file
@json_option
@speaks_plainly
def verify(url: str, key_file: Path | None, as_json: bool) -> None:
    """Check all archives of a library, or one FILE.

    The exit code is 1 if any is refused.
    """
    from torchett.levers.compile.cache.archive import contents, unpack
    from torchett.levers.compile.cache.library import environment_of
    from torchett.model.errors import EttError

    checked: list[dict[str, Any]] = []
    if Path(url).is_file():
        names = [(url, None)]
    else:
        library = _library(url, key_file)
        names = [(head.key, head) for head in library.heads()]  # type: ignore[misc]
    for name, head in names:
        try:
            if head is None:
                archive = _file(Path(name), key_file, None)[0]
            else:
                archive = unpack(_read(library, head), library.key)
                if environment_of(archive.environment).key != head.key:
                    raise InputError("stale: it was made for another environment")
            contents(archive)
            checked.append({"key": name, "good": True, "reason": ""})
        except EttError as error:
            checked.append({"key": name, "good": False, "reason": str(error)})
    if as_json:
        print_json({"url": url, "archives": checked})
    else:
        for one in checked:
            click.echo(f"{'good' if one['good'] else 'REFUSED'}  {one['key']}  {one['reason']}")
    raise SystemExit(0 if all(one["good"] for one in checked) else 1)


@cache.command("gc")
@click.argument("url")
@click.option(
    "--older-than",
    default=90.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Delete archives that were made more than this many days ago.",
)
@json_option
@speaks_plainly
def gc(url: str, older_than: float, as_json: bool) -> None:
    """Delete old archives, and files that interrupted writers left."""
    gone = _library(url).gc(older_than_s=older_than * 86400, now_s=time.time())
    if as_json:
        print_json({"url": url, "deleted": gone})
    else:
        for name in gone:
            click.echo(name)


def say_if_unusable(url: str) -> None:
    """Say before a job what its ranks would say later: it runs all the same, compiling cold."""
    from torchett.levers.compile.cache.signing import HOW, key_for
    from torchett.model.errors import EttError
    from torchett.store import StoreError, open_store

    try:
        if key_for(open_store(url), os.environ, create=True) is None:
            click.echo(f"ett: {url} is not used, others can write to it: {HOW}", err=True)
    except (EttError, StoreError, OSError) as error:
        click.echo(f"ett: {url} is not used: {error}", err=True)


def _store(url: str) -> "Store":
    """Where a library is, or will be."""
    from torchett.store import FolderStore, StoreError, open_store

    try:
        store = open_store(url)
    except StoreError as error:
        raise InputError(str(error)) from None
    if isinstance(store, FolderStore) and store.root.is_file():
        raise InputError(f"{url}: expected a folder with archives, found a file")
    return store


def _library(url: str, key_file: Path | None = None) -> "Library":
    """A library that is there."""
    from torchett.levers.compile.cache.library import Library
    from torchett.levers.compile.cache.signing import key_for
    from torchett.store import FolderStore

    store = _store(url)
    if isinstance(store, FolderStore) and not store.root.is_dir():
        raise InputError(f"{url}: expected a folder with archives, found nothing")
    return Library(store, key_for(store, _with_key(key_file)))


def _head(library: "Library", key: str) -> "Head":
    found = [head for head in library.heads() if head.key.startswith(key)]
    if len(found) != 1:
        there = ", ".join(head.key for head in library.heads()) or "none"
        raise InputError(f"'{key}': expected one archive, found {len(found)} of: {there}")
    return found[0]


def _read(library: "Library", head: "Head") -> bytes:
    from torchett.store import StoreError

    try:
        return library.bytes_of(head)
    except (StoreError, OSError) as error:
        raise InputError(
            f"{head.key}: the archive its head names cannot be read: {error}"
        ) from None


def _archive(url: str, key: str | None, key_file: Path | None) -> "tuple[Archive, int]":
    """An archive of a library, or one in a file."""
    from torchett.levers.compile.cache.archive import unpack

    if key is None:
        if not Path(url).is_file():
            raise InputError(f"'{url}': expected an archive's file, or a library and a KEY")
        return _file(Path(url), key_file, None)
    library = _library(url, key_file)
    data = _read(library, _head(library, key))
    return unpack(data, library.key), len(data)


def _file(path: Path, key_file: Path | None, also: "Key | None") -> "tuple[Archive, int]":
    from torchett.levers.compile.cache.archive import (
        MOST_BYTES,
        RefusedError,
        StrangeKeyError,
        unpack,
    )
    from torchett.levers.compile.cache.signing import HOW_FROM_ANOTHER

    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path}: {path.stat().st_size} bytes, expected {MOST_BYTES} at most")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    try:
        return unpack(data, _key(path, key_file) or also), len(data)
    except StrangeKeyError as error:
        raise InputError(f"{path}: {error.seen}: {HOW_FROM_ANOTHER}") from None
    except RefusedError as error:
        raise InputError(f"{path}: {error}") from None


def _key(file: Path, key_file: Path | None) -> "Key | None":
    """The key for a file: as given, from the environment, or that of the library it lies in."""
    from torchett.levers.compile.cache.signing import key_for
    from torchett.store import FolderStore

    return key_for(FolderStore(file.absolute().parent.parent), _with_key(key_file))


def _with_key(key_file: Path | None) -> dict[str, str]:
    """The environment in which the key is the one that was given, if one was."""
    return dict(os.environ) | ({"ETT_CACHE_KEY_FILE": str(key_file)} if key_file else {})


def _head_json(head: "Head") -> dict[str, Any]:
    return {
        "key": head.key,
        "archive": head.archive,
        "bytes": head.size,
        "entries": head.entries,
        "made_s": head.made_s,
        "environment": dict(head.environment),
    }


compile_.add_command(doctor)
compile_.add_command(kernels)
