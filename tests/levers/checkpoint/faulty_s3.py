"""An S3 server (moto's) that stalls, answers 503, or loses a part when it is told to.

with faulty_s3() as server:
    server.fault = "stall"      # requests that write wait until it is None, or "503", "lose"
    Checkpointer(server.address, …)
"""

import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

BLOCK = 5 << 20  # the smallest part that S3 allows: files above it are sent in parts
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


class FaultyS3:
    """The server: `fault` is what is wrong with requests that write data now."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app
        self.fault: str | None = None
        self.requests = Counter[str]()  # by method
        self.failed = Counter[str]()  # requests by fault
        self.attempts: set[str] = set()  # folders of checkpoints that met one
        self.bucket = f"bucket-{uuid.uuid4().hex}"  # moto has one memory for all servers
        self.address = f"s3://{self.bucket}/job"
        self._healed = threading.Event()

    def heal(self) -> None:
        """From now on nothing is wrong; requests that wait are answered."""
        self.fault = None
        self._healed.set()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        from werkzeug.wsgi import get_input_stream

        self.requests[environ["REQUEST_METHOD"]] += 1
        fault = self.fault
        if environ["REQUEST_METHOD"] != "PUT" or ".distcp" not in environ["PATH_INFO"]:
            fault = None
        if fault is not None:
            self.failed[fault] += 1
            self.attempts.add(environ["PATH_INFO"].rsplit("/", 2)[-2])
        if fault == "stall":
            self._healed.clear()
            self._healed.wait(900)
        elif fault == "503":
            get_input_stream(environ).read()
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [_SLOW_DOWN]
        elif fault == "lose":  # answered as if it had been kept
            self.fault = None
            get_input_stream(environ).read()
            start("200 OK", [("ETag", '"0123456789abcdef0123456789abcdef"')])
            return [b""]
        return self._app(environ, start)


@contextmanager
def faulty_s3() -> Iterator[FaultyS3]:
    """The server with an empty bucket; s3:// addresses of this process lead to it."""
    import fsspec
    import s3fs
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = FaultyS3(DomainDispatcherApplication(create_backend_app))
    listener = make_server("127.0.0.1", 0, server, threaded=True)
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    before = fsspec.config.conf.get("s3")
    settings = {"endpoint_url": f"http://127.0.0.1:{listener.port}", "key": "a", "secret": "b"}
    fsspec.config.conf["s3"] = {**settings, "default_block_size": BLOCK}
    try:
        s3fs.S3FileSystem(**settings).mkdir(server.bucket)
        yield server
    finally:
        server.heal()
        fsspec.config.conf.pop("s3")
        if before is not None:
            fsspec.config.conf["s3"] = before
        listener.shutdown()
        thread.join()
        listener.server_close()
