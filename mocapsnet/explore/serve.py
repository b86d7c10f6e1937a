"""Starting the explorer: where it listens, and whom that lets in."""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from mocapsnet.errors import WrongArgument
from mocapsnet.explore import app
from mocapsnet.explore.look import Look

CONNECTIONS = 256
SIDE_BY_SIDE = 3
"""Networks on one page: the paper has three."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def serve(runs: Sequence[str], data: str | None, host: str, port: int) -> None:
    """Open the runs, print the address and answer until the program is stopped."""
    if not 0 <= port <= 65535:
        raise WrongArgument(f"port must be from 0 to 65535, got {port}; 0 picks a free one")
    if len(runs) > SIDE_BY_SIDE:
        raise WrongArgument(f"at most {SIDE_BY_SIDE} runs stand side by side, got {len(runs)}")
    looks = [Look(run, data) for run in runs]
    # One image for all: the number of a test image means the same in every run.
    shared = next((look for look in looks if look.test is not None), looks[0])
    for look in looks[1:]:
        if look.model.image_shape != looks[0].model.image_shape or look.class_names != looks[0].class_names:
            raise WrongArgument(
                f"runs shown side by side must be of the same images and classes; {look.name} is not of "
                f"{looks[0].name}'s"
            )
    listening = listen(host, port)
    for look in looks:
        look.test, look.tested = shared.test, shared.tested
        look.warm()
    address, number = listening.getsockname()[:2]
    own = is_loopback(address)
    everywhere = ipaddress.ip_address(address).is_unspecified
    shown = "localhost" if everywhere else f"[{address}]" if ":" in address else address
    print(f"explorer at http://{shown}:{number}/ (Ctrl-C ends it)", flush=True)
    if not own:
        reached = "this computer under any of its addresses" if everywhere else shown
        print(
            f"it is open to everybody who can reach {reached}: they can look at these networks and make this "
            "machine compute; --host 127.0.0.1 keeps it to yourself",
            flush=True,
        )
    config = uvicorn.Config(
        app.make_app(looks, LOOPBACK if own else None),
        http=Hurried,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run(sockets=[listening])


class Hurried(H11Protocol):
    """A connection that is closed when the head of a request takes too long to arrive, however it drips."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self.wait()

    def on_response_complete(self) -> None:
        """Wait for the next one."""
        super().on_response_complete()
        self.wait()

    def wait(self) -> None:
        """Give the head of a request its time."""
        if self.deadline:
            self.deadline.cancel()
        self.deadline = self.loop.call_later(app.PATIENCE, self.hurry)

    def hurry(self) -> None:
        """Close the connection if no request has arrived."""
        if self.conn.their_state is h11.IDLE:
            self.transport.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to the host's address, which other computers see only where that is theirs to see."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)[0]
    except OSError as error:
        raise WrongArgument(f"host {host!r} has no address here: {error.strerror}") from error
    family, kind, protocol, _, address = found
    # asyncio sends at once only where it is told that this is TCP; answers would wait 40 ms otherwise.
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        # From here on, whoever reads the printed address is waited for.
        listening.listen(CONNECTIONS)
    except OSError as error:
        listening.close()
        raise OSError(
            f"port {port} of {host} cannot be used ({error.strerror}); --port 0 picks one"
        ) from error
    return listening


def is_loopback(address: str) -> bool:
    """Whether only this computer can reach an address."""
    return ipaddress.ip_address(address).is_loopback
