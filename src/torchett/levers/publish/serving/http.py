"""A version by HTTP, for trying it: not a server for production.

    GET  /          what it is, and the inputs it takes
    POST /predict   {"dense": [[…]], "ids": [[…]], …}  →  {"version": …, "answers": […]}

An input that is refused is answered with 422 and the sentence that says why.
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from torchett.levers.publish.serving.snapshot import Snapshot, SnapshotError

_MOST_BYTES = 64 << 20


def listen(model: Snapshot, label: str, host: str, port: int) -> ThreadingHTTPServer:
    """A server that answers for this model once it is told to."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told = {key: model.told[key] for key in ("inputs", "dims", "torch", "isa")}
            self._say(200, {"version": label, **told})

        def do_POST(self) -> None:
            if self.path != "/predict":
                return self._say(404, {"error": "expected POST /predict"})
            try:
                length = int(self.headers.get("Content-Length") or 0)
                if not 0 < length <= _MOST_BYTES:
                    return self._say(413, {"error": f"expected 1 to {_MOST_BYTES} bytes"})
                answers = model.flat(*_tensors(model, json.loads(self.rfile.read(length))))
            except SnapshotError as error:
                return self._say(422, {"error": str(error)})
            except (ValueError, TypeError) as error:
                return self._say(400, {"error": f"expected JSON, lists by input name: {error}"})
            self._say(200, {"version": label, "answers": [one.tolist() for one in answers]})

        def _say(self, status: int, said: dict[str, Any]) -> None:
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return ThreadingHTTPServer((host, port), Handler)


def _tensors(model: Snapshot, given: Any) -> list[Any]:
    """The inputs, in their order, of lists by name."""
    import torch

    names = [one["name"] for one in model.told["inputs"]]
    if not isinstance(given, dict) or set(given) != set(names):
        raise SnapshotError(f"expected the inputs {', '.join(names)} by name")
    kinds = {f"torch.{name}": getattr(torch, name) for name in ("float32", "float64", "int64")}
    kinds |= {f"torch.{name}": getattr(torch, name) for name in ("int32", "uint8", "bool")}
    kinds |= {f"torch.{name}": getattr(torch, name) for name in ("float16", "bfloat16", "int8")}
    return [
        torch.tensor(given[one["name"]], dtype=kinds[one["dtype"]]) for one in model.told["inputs"]
    ]
