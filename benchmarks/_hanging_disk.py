"""A small file system in memory (FUSE, by its kernel protocol) that stops answering when told.

    python _hanging_disk.py FOLDER        mounts; on SIGUSR1 it answers nothing for HANG_S seconds

Needs root and /dev/fuse, and no library.
"""

import ctypes
import errno
import os
import signal
import stat
import struct
import sys
import time
from typing import Any

HANG_S = float(os.environ.get("HANG_S", "60"))
_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")
_DIRECT_IO = 1
Answer = bytes | int | None  # None: the kernel expects none; an int: an errno


class Node:
    """A file or a folder."""

    def __init__(self, ino: int, mode: int) -> None:
        self.ino, self.mode = ino, mode
        self.data = bytearray()
        self.children: dict[bytes, Node] = {}

    def attr(self) -> bytes:
        size, now = len(self.data), int(time.time())
        times = struct.pack("<QQQQQQ", self.ino, size, size // 512 + 1, now, now, now)
        return times + struct.pack("<10I", 0, 0, 0, self.mode, 1, 0, 0, 0, 4096, 0)

    def entry(self) -> bytes:
        return struct.pack("<QQQQII", self.ino, 0, 0, 0, 0, 0) + self.attr()


class Disk:
    """Answers requests, one after the other."""

    def __init__(self) -> None:
        self.nodes = {1: Node(1, stat.S_IFDIR | 0o755)}
        self.next = 2

    def answer(self, opcode: int, ino: int, body: bytes) -> Answer:
        work = getattr(self, f"op{opcode}", None)
        return work(self.nodes.get(ino), body) if work else errno.ENOSYS

    def _new(self, parent: Node, name: bytes, mode: int) -> Node:
        node = Node(self.next, mode)
        self.nodes[node.ino] = parent.children[name] = node
        self.next += 1
        return node

    def op1(self, node: Node, body: bytes) -> Answer:  # lookup
        child = node.children.get(body.rstrip(b"\0"))
        return errno.ENOENT if child is None else child.entry()

    def op2(self, node: Node, body: bytes) -> Answer:  # forget
        return None

    op36 = op42 = op2

    def op3(self, node: Node, body: bytes) -> Answer:  # getattr
        return struct.pack("<QII", 0, 0, 0) + node.attr()

    def op4(self, node: Node, body: bytes) -> Answer:  # setattr
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        if valid & 8:
            del node.data[size:]
            node.data += bytes(size - len(node.data))
        return self.op3(node, body)

    def op9(self, node: Node, body: bytes) -> Answer:  # mkdir
        mode, _ = struct.unpack_from("<II", body)
        return self._new(node, body[8:].rstrip(b"\0"), stat.S_IFDIR | mode).entry()

    def op10(self, node: Node, body: bytes) -> Answer:  # unlink
        return b"" if node.children.pop(body.rstrip(b"\0"), None) else errno.ENOENT

    op11 = op10

    def op45(self, node: Node, body: bytes) -> Answer:  # rename
        target = self.nodes[struct.unpack_from("<Q", body)[0]]
        old, new, _ = body[16:].split(b"\0", 2)
        target.children[new] = node.children.pop(old)
        return b""

    def op14(self, node: Node, body: bytes) -> Answer:  # open
        return struct.pack("<QII", 0, _DIRECT_IO, 0)

    def op27(self, node: Node, body: bytes) -> Answer:  # opendir
        return struct.pack("<QII", 0, 0, 0)

    def op15(self, node: Node, body: bytes) -> Answer:  # read
        _, offset, size = struct.unpack_from("<QQI", body)
        return bytes(node.data[offset : offset + size])

    def op16(self, node: Node, body: bytes) -> Answer:  # write
        _, offset, size = struct.unpack_from("<QQI", body)
        node.data += bytes(max(0, offset - len(node.data)))
        node.data[offset : offset + size] = body[40 : 40 + size]
        return struct.pack("<II", size, 0)

    def op17(self, node: Node, body: bytes) -> Answer:  # statfs
        free = 1 << 20
        return struct.pack("<5Q4I24x", free, free, free, free, free, 4096, 255, 4096, 0)

    def op18(self, node: Node, body: bytes) -> Answer:  # release, flush, fsync, …
        return b""

    op20 = op25 = op29 = op30 = op38 = op18

    def op26(self, node: Node, body: bytes) -> Answer:  # init
        return struct.pack("<4I2H2I2H8I", 7, 31, 1 << 17, 0, 12, 9, 1 << 17, 1, 32, 0, *[0] * 8)

    def op28(self, node: Node, body: bytes) -> Answer:  # readdir
        _, offset, size = struct.unpack_from("<QQI", body)
        out = b""
        for at, (name, child) in list(enumerate(node.children.items(), 1))[offset:]:
            kind = stat.S_IFMT(child.mode) >> 12
            one = struct.pack("<QQII", child.ino, at, len(name), kind) + name
            one += bytes(-len(one) % 8)
            if len(out) + len(one) > size:
                break
            out += one
        return out

    def op35(self, node: Node, body: bytes) -> Answer:  # create
        _, mode = struct.unpack_from("<II", body)
        made = self._new(node, body[16:].rstrip(b"\0"), stat.S_IFREG | stat.S_IMODE(mode))
        return made.entry() + self.op14(made, body)  # type: ignore[operator]


def main(folder: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    libc: Any = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    if libc.mount(b"hanging", folder.encode(), b"fuse.hanging", 0, options.encode()):
        sys.exit(f"no FUSE here: {os.strerror(ctypes.get_errno())}")
    hangs: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: hangs.append(number))
    disk = Disk()
    print("mounted", flush=True)
    while True:
        try:
            request = os.read(device, 1 << 18)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return  # unmounted
            continue
        if hangs:
            hangs.clear()
            time.sleep(HANG_S)
        _, opcode, unique, ino, *_ = _IN.unpack_from(request)
        answer = disk.answer(opcode, ino, request[_IN.size :])
        if answer is None:
            continue
        error = answer if isinstance(answer, int) else 0
        data = b"" if isinstance(answer, int) else answer
        try:
            os.write(device, _OUT.pack(_OUT.size + len(data), -error, unique) + data)
        except OSError:
            pass  # it was interrupted


if __name__ == "__main__":
    main(sys.argv[1])
