"""A network between a client and a server that can be cut."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress


class Network:
    """Passes connections on to a server of this machine. Its own port stays there when the server does not."""

    def __init__(self, target: int, port: int = 0):
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._up = threading.Event()
        self._up.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """Reset every connection at once, as when a cable is pulled; how many there were."""
        with self._lock:
            cut = list(self._open)
            self._open.clear()
        for end in cut:
            with suppress(OSError):  # closed by its owner meanwhile
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
                end.close()
        return len(cut) // 2

    def down(self) -> None:
        """Refuse new connections and reset those there are, until `up`."""
        self._up.clear()
        self.cut()

    def up(self) -> None:
        self._up.set()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            if not self._up.is_set():
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target), timeout=10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._open |= {near, far}
            threading.Thread(target=self._connect, args=(near, far), daemon=True).start()

    def _connect(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=_pass_on, args=(far, near), daemon=True)
        back.start()
        _pass_on(near, far)
        back.join()
        with self._lock:
            self._open -= {near, far}
        near.close()
        far.close()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:  # cut, or closed by either side: then neither way is open
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
