"""The explorer in a process of its own, as people start it."""

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

REPOSITORY = Path(__file__).parent.parent.parent
START = "import mocapsnet.explore.app as app; app.PATIENCE = {}; from mocapsnet.cli import main; main({!r})"


class Server(NamedTuple):
    address: str
    pid: int

    @property
    def port(self) -> int:
        return int(self.address.rstrip("/").rpartition(":")[2])

    def ask(self, path: str, fields: object = None, content: bytes | None = None, **headers: str):
        """The status of an answer, and its JSON or bytes."""
        if fields is not None:
            content, headers = json.dumps(fields).encode(), {"content-type": "application/json", **headers}
        try:
            with urlopen(Request(self.address + path, content, headers), timeout=60) as answer:
                status, kind, told = answer.status, answer.headers["content-type"], answer.read()
        except HTTPError as error:
            status, kind, told = error.code, error.headers["content-type"], error.read()
        return status, json.loads(told) if kind == "application/json" else told

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def peak_memory(self) -> int:
        """Bytes, the most so far."""
        told = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", told)[1])


@contextmanager
def serving(*words: object, patience: float = 10):
    """A server on a free port, ended at the end."""
    command = [sys.executable, "-c", START.format(patience, ["explore", "--port", "0", *map(str, words)])]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+/", line)
        assert found, (line, process.communicate()[1])
        yield Server(found[0], process.pid)
        assert process.poll() is None, process.communicate()[1]
    finally:
        process.terminate()
        process.communicate(timeout=20)
