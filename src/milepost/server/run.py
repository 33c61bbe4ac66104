"""The server's life: it listens, loads the model meanwhile, serves, and stops on a signal."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn

from milepost.errors import ConfigError
from milepost.server.app import create_app
from milepost.server.connection import Connection
from milepost.server.state import Engine, ServerState
from milepost.server.tls import Tls

GRACE_SECONDS = 10
"""After a signal, running requests have this long to finish; then they end with an error."""

KEEP_ALIVE_SECONDS = 75
"""Well above the 5 s after which common clients drop an idle connection: they must not meet one that just closed."""

Load = Callable[[Callable[[int, int], None]], Engine]
"""Loads the engine; calls its argument with the bytes done and the bytes in total."""


class LoadingStopped(BaseException):
    """Ends the loading thread from inside its progress call. No `Exception`: nothing on the way may catch it."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; `ConfigError` when the address cannot be had. Port 0: any free one."""
    try:
        # The protocol is named: only then does asyncio send each event at once instead of gathering (TCP_NODELAY).
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(1024)
        except OSError:
            sock.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"cannot listen on {host} port {port}: {reason}", "choose another --port or --host") from None
    return sock


def url_of(sock: socket.socket, tls: Tls | None = None) -> str:
    host, port = sock.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def serve(
    state: ServerState,
    sock: socket.socket,
    load: Load,
    on_ready: Callable[[], None],
    grace_seconds: int = GRACE_SECONDS,
    tls: Tls | None = None,
) -> None:
    """Serves on `sock` until SIGINT or SIGTERM, from the first moment on: /health answers while `load` runs aside. Over
    HTTPS where there is `tls`.

    `on_ready` is called once requests are served. Raises what `load` raised. A second SIGINT ends the grace period.
    """
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(state),
            log_config=None,
            log_level="error",
            access_log=False,
            http=Connection,
            ws="none",
            lifespan="off",
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=grace_seconds,
            **(tls.for_uvicorn() if tls else {}),
        )
    )
    loading = _Loading(state, server, load, on_ready)
    with _signals_stop(server):
        loading.thread.start()
        try:
            server.run(sockets=[sock])
        finally:
            loading.stop()
            if state.engine_or_none is not None:
                state.engine_or_none.shutdown()
    if loading.failure is not None:
        raise loading.failure


class _Loading:
    """Loading in a thread of its own. A daemon: a load that cannot be interrupted does not hold up the end."""

    def __init__(self, state: ServerState, server: uvicorn.Server, load: Load, on_ready: Callable[[], None]) -> None:
        self._state, self._server, self._load, self._on_ready = state, server, load, on_ready
        self._stopped = False
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="milepost-load", daemon=True)

    def stop(self) -> None:
        self._stopped = True
        self.thread.join(timeout=5)

    def _run(self) -> None:
        try:
            engine = self._load(self._progress)
        except LoadingStopped:
            return
        except BaseException as error:
            self.failure = error
            self._server.should_exit = True
            return
        self._state.ready(engine)
        if not self._stopped:
            self._on_ready()

    def _progress(self, done_bytes: int, total_bytes: int) -> None:
        if self._stopped:
            raise LoadingStopped
        self._state.loading(done_bytes, total_bytes)


@contextlib.contextmanager
def _signals_stop(server: uvicorn.Server) -> Iterator[None]:
    """uvicorn stops on a signal and raises it once more at its end: these handlers take that one without harm."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
