"""Lines that nobody on the way can read: TLS 1.3 with one certificate, which the processes of a pool have alone.

A process uses one end of a socket pair as it would the line; a thread brings what it writes there to the network
encrypted, and what comes from there decrypted. That costs a copy and two wake-ups a message, and keeps all else as it
is.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import subprocess
import tempfile
import threading

from pslab.errors import StartFailed

PIECE_BYTES = 1 << 16
MAKE = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-days", "3650", "-subj", "/CN=pslab", "-keyout", "-", "-out", "-"]  # fmt: skip


def new_certificate() -> bytes:
    """A certificate and its private key, in PEM.

    Raises:
        StartFailed: this host has no openssl command, or one that is too old.
    """
    try:
        return subprocess.run(MAKE, check=True, capture_output=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise StartFailed(f"payload: encrypted needs the command openssl on this host ({error})") from error


def encrypted(line: socket.socket, certificate: bytes, *, dials: bool, limit_s: float) -> socket.socket:
    """The end of a socket pair that stands for a line from now on; the line itself is taken. It ends if the other end
    has another certificate, or does not answer within `limit_s`."""
    inside, outside = socket.socketpair()
    context = _context(certificate, dials=dials)
    threading.Thread(target=_carry, args=(inside, line, context, dials, limit_s), daemon=True).start()
    return outside


def _context(certificate: bytes, *, dials: bool) -> ssl.SSLContext:
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if dials else ssl.PROTOCOL_TLS_SERVER)
    found.minimum_version = ssl.TLSVersion.TLSv1_3
    found.check_hostname, found.verify_mode = False, ssl.CERT_REQUIRED
    found.load_verify_locations(cadata=ssl.PEM_cert_to_DER_cert(_cut(certificate)))
    with tempfile.NamedTemporaryFile() as file:  # ssl reads keys from files alone; this one nobody else may read
        file.write(certificate)
        file.flush()
        found.load_cert_chain(file.name)
    return found


def _cut(certificate: bytes) -> str:
    text = certificate.decode()
    return text[text.index("-----BEGIN CERTIFICATE") :]


def _carry(inside: socket.socket, line: socket.socket, context: ssl.SSLContext, dials: bool, limit_s: float) -> None:
    """Bring what comes at each of the two to the other, until one has ended."""
    line.settimeout(limit_s)
    with inside, line, contextlib.suppress(OSError), context.wrap_socket(line, server_side=not dials) as tls:
        tls.setblocking(False)
        inside.setblocking(False)
        out, into, both = bytearray(), bytearray(), select.poll()
        while True:
            both.register(tls, (select.POLLIN if not into else 0) | (select.POLLOUT if out else 0))
            both.register(inside, (select.POLLIN if not out else 0) | (select.POLLOUT if into else 0))
            if into or not tls.pending():
                both.poll()
            if into:
                _send(into, inside)
            elif not _fill(into, tls):
                return
            if out:
                _send(out, tls)
            elif not _fill(out, inside):
                return


def _fill(room: bytearray, source: socket.socket) -> bool:
    """Take what is there; False at the end of it."""
    with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        data = source.recv(PIECE_BYTES)
        room += data
        return bool(data)
    return True


def _send(content: bytearray, target: socket.socket) -> None:
    """Send what the other end takes now."""
    with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        del content[: target.send(content)]
