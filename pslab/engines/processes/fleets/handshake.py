"""How processes on one or many machines connect: one listens, the others dial, and each proves that it has the pool's
key.

Both ends answer a challenge of the other by an HMAC (RFC 2104) over all bytes sent until then, so that neither can be
replayed or relayed with other bytes. All messages before that have a fixed length, nothing of them is unpickled, and a
stranger that is slow, silent or wrong is dropped within HELLO_LIMIT_S without keeping others waiting. Nothing is
encrypted.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import platform
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator, Iterable
from importlib.metadata import version
from multiprocessing.connection import Connection
from typing import NamedTuple

from pslab.errors import ConfigError, StartFailed
from pslab.version import __version__

Address = tuple[str, int]
KEY_BYTES = NONCE_BYTES = 32
HELLO_LIMIT_S = 1.0  # for a whole handshake
HEED_S = 0.1
START_LIMIT_S = 60.0  # in which a process that was started has dialled
PINGS = 32
CLOCK = -(1 << 32)  # instead of its number, from a process that dials for the time alone
WIRE = 2  # raised whenever the bytes of messages, patches or this handshake change

MAGIC = b"pslab\0"
HELLO = struct.Struct(f"<6sq96s{NONCE_BYTES}s")  # of the caller: its number, versions, challenge
ANSWER = struct.Struct(f"<6s96s{NONCE_BYTES}s32s")  # of the listener: its versions, challenge, proof
PROOF, INSTANT, VERDICT = struct.Struct("<32s"), struct.Struct("<d"), struct.Struct("<?255p")


class Refused(StartFailed):
    """A handshake has failed: the other end has another key or other versions, or is no process of pslab."""


class Offset(NamedTuple):
    """How much more another clock shows than one's own, in seconds, and how wrong that may be."""

    seconds: float
    bound_s: float


SAME = Offset(0.0, 0.0)  # of processes that read one clock


def offset(pings: Iterable[tuple[float, float, float]]) -> Offset:
    """The difference of two clocks from pings: each was sent and its answer received at these instants of one's own
    clock, and the other clock showed the middle number meanwhile.

    A message that is answered with the other clock's instant bounds their difference by half its round trip, whichever
    of its two ways took longer; of several the shortest one bounds it best (Cristian, Distributed Computing 3, 1989).
    Two clocks that agree within the bound are taken for the one of a machine. ValueError if there is no ping.
    """
    sent_s, theirs_s, received_s = min(pings, key=lambda ping: ping[2] - ping[0])
    found = Offset(theirs_s - (sent_s + received_s) / 2, (received_s - sent_s) / 2)
    return SAME if abs(found.seconds) <= found.bound_s else found


class Peer(NamedTuple):
    """A line to a process that has proved its number."""

    line: Connection
    clock: Offset  #: of the process that listens, as the one that dialled has measured it


def new_key() -> bytes:
    """The key of one pool: every process that has it may take part."""
    return secrets.token_bytes(KEY_BYTES)


def versions() -> str:
    """The versions that have to be the same on both sides."""
    python = ".".join(platform.python_version_tuple()[:2])
    return f"Python {python}, pslab {__version__}, torch {version('torch')}, wire {WIRE}"


def address_in(network: str) -> str:
    """This machine's own address in a network, such as ``10.0.0.0/8``, or the address itself.

    Raises:
        ConfigError: it is no network, or this machine has no address in it.
    """
    try:
        wanted = ipaddress.ip_network(network, strict=False)
    except ValueError as error:
        raise ConfigError("network", network, f"must be a network such as 10.0.0.0/8 or an address: {error}") from None
    family = socket.AF_INET if wanted.version == 4 else socket.AF_INET6
    other = next(iter(wanted.hosts()), wanted.network_address)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # nothing is sent: the system chooses a way there
        try:
            probe.connect((str(other), 9))
            own = str(probe.getsockname()[0])
        except OSError:
            own = ""
    if not own or ipaddress.ip_address(own) not in wanted:
        raise ConfigError("network", network, f"this machine has no address in it; its way there begins at {own!r}")
    return own


class Listener:
    """Where others dial, on one address of one network.

    Args:
        key: that of the pool.
        network: see `address_in`.
        ports: the first and last port that may be taken; (0, 0) for any.

    Raises:
        StartFailed: none of these ports is free.
        ConfigError: what `address_in` raises.
    """

    def __init__(self, key: bytes, network: str = "127.0.0.1", ports: tuple[int, int] = (0, 0),
                 clock: Callable[[], float] | None = None) -> None:  # fmt: skip
        self._key, self._clock = key, clock or time.monotonic
        self._socket = _bound(address_in(network), ports)
        self._socket.setblocking(False)
        self.address: Address = self._socket.getsockname()[:2]
        self.refused: list[str] = []  #: why others were turned away
        self._here: dict[int, Connection] = {}
        self._unfit: dict[int, str] = {}  # processes that have the key, and other versions
        self._callers = dict[socket.socket, _Caller]()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._arrived: threading.Condition | None = None

    def attend(self) -> None:
        """Answer every caller at once, in a thread that never ends; `accept` then waits for that thread."""
        self._arrived = threading.Condition()
        threading.Thread(target=self._attend, args=(self._arrived,), daemon=True).start()

    def _attend(self, arrived: threading.Condition) -> None:
        while True:
            self._turn(time.monotonic() + START_LIMIT_S)
            with arrived:
                arrived.notify_all()

    def accept(
        self, number: int, limit_s: float = START_LIMIT_S, heed: Callable[[], None] = lambda: None
    ) -> Connection:
        """The line of the process with this number, once it has dialled; of two with one number that of the last.
        `heed` is called a few times a second until then: it may raise.

        Raises:
            TimeoutError: it has not, within so many seconds.
            Refused: it has, with other versions than this process.
        """
        until_s = time.monotonic() + limit_s
        while number not in self._here:
            if number in self._unfit:
                raise Refused(self._unfit.pop(number))
            if time.monotonic() > until_s:
                why = f"; refused: {self.refused[-1]}" if self.refused else ""
                raise TimeoutError(f"process {number} has not dialled {self.address[0]}:{self.address[1]} within "
                                   f"{limit_s:g} s{why}")  # fmt: skip
            if self._arrived is None:
                heed()
                self._turn(min(until_s, time.monotonic() + HEED_S))
                continue
            with self._arrived:
                if number not in self._here:
                    self._arrived.wait(max(0.0, until_s - time.monotonic()) + 1e-3)
        return self._here.pop(number)

    def _turn(self, until_s: float) -> None:
        """Wait until a caller sends something, and answer."""
        due_s = min([until_s, *(caller.until_s for caller in self._callers.values())])
        for ready, _ in self._selector.select(max(0.0, due_s - time.monotonic()) + 1e-3):
            if ready.fileobj is self._socket:
                self._welcome()
            else:
                self._hear(self._callers[ready.fileobj])  # type: ignore[index]
        for caller in [caller for caller in self._callers.values() if caller.until_s < time.monotonic()]:
            self._dismiss(caller, f"a stranger sent nothing more for {HELLO_LIMIT_S:g} s")

    def close(self) -> None:
        """Stop accepting connections."""
        for caller in list(self._callers.values()):
            self._dismiss(caller, "")
        self._selector.close()
        self._socket.close()
        for line in self._here.values():
            line.close()

    def _welcome(self) -> None:
        with contextlib.suppress(OSError):  # it may have gone again
            line, _ = self._socket.accept()
            line.setblocking(False)
            caller = _Caller(line, self._meet(line))
            caller.wants = next(caller.answers)
            self._callers[line] = caller
            self._selector.register(line, selectors.EVENT_READ)

    def _hear(self, caller: _Caller) -> None:
        """Read what a caller has sent, up to the length that is expected next."""
        try:
            sent = caller.line.recv(caller.wants - len(caller.sent))
            if not sent:
                raise Refused("a stranger hung up")
            caller.sent += sent
            if len(caller.sent) == caller.wants:
                data, caller.sent = caller.sent, b""
                caller.wants = caller.answers.send(data)
        except StopIteration as found:
            number = found.value
            self._leave(caller)
            if number == CLOCK:
                caller.line.close()
                return
            if number in self._here:
                self._here.pop(number).close()
            self._here[number] = _connection(caller.line)
        except (OSError, Refused) as error:
            self._dismiss(caller, str(error))

    def _meet(self, line: socket.socket) -> Generator[int, bytes, int]:
        """The listener's part: it yields how many bytes are to come next, and returns the caller's number."""
        hello = yield HELLO.size
        magic, number, theirs, _ = HELLO.unpack(hello)
        if magic != MAGIC:
            raise Refused("a stranger that is no process of pslab")
        own, nonce = _padded(versions()), secrets.token_bytes(NONCE_BYTES)
        sent = hello + MAGIC + own + nonce
        _send(line, ANSWER.pack(MAGIC, own, nonce, _proof(self._key, b"listens", sent)))
        (proof,) = PROOF.unpack((yield PROOF.size))
        if not hmac.compare_digest(proof, _proof(self._key, b"dials", sent)):
            raise Refused(f"process {number} dialled with another key")
        why = "" if own == theirs else f"it has {_text(theirs)}, the listener has {versions()}"
        _send(line, VERDICT.pack(not why, why.encode()[:254]))
        if why:
            self._unfit[number] = f"process {number} cannot take part: {why}"
            raise Refused(self._unfit[number])
        for _ in range(PINGS):
            yield INSTANT.size
            _send(line, INSTANT.pack(self._clock()))
        return int(number)

    def _leave(self, caller: _Caller) -> None:
        self._selector.unregister(caller.line)
        del self._callers[caller.line]

    def _dismiss(self, caller: _Caller, why: str) -> None:
        self._leave(caller)
        caller.line.close()
        self.refused += [why] if why else []


class _Caller:
    """A process that has dialled, and has not yet proved its number."""

    def __init__(self, line: socket.socket, answers: Generator[int, bytes, int]) -> None:
        self.line, self.answers, self.sent, self.wants = line, answers, b"", 0
        self.until_s = time.monotonic() + HELLO_LIMIT_S


def dial(address: Address, number: int, key: bytes, limit_s: float = START_LIMIT_S,
         clock: Callable[[], float] | None = None) -> Peer:  # fmt: skip
    """Connect to the process that listens there, as the process of this number.

    Raises:
        Refused: it has another key or other versions, or is no process of pslab.
        OSError: no process listens there, or it does not answer within `limit_s`.
    """
    line = socket.create_connection(address, limit_s)
    try:
        own = _padded(versions())
        hello = HELLO.pack(MAGIC, number, own, secrets.token_bytes(NONCE_BYTES))
        line.sendall(hello)
        magic, theirs, nonce, proof = ANSWER.unpack(_received(line, ANSWER.size, address))
        sent = hello + magic + theirs + nonce
        if magic != MAGIC:
            raise Refused(f"the listener at {address[0]}:{address[1]} is no process of pslab")
        if not hmac.compare_digest(proof, _proof(key, b"listens", sent)):
            raise Refused(f"the listener at {address[0]}:{address[1]} has another key")
        line.sendall(PROOF.pack(_proof(key, b"dials", sent)))
        welcome, why = VERDICT.unpack(_received(line, VERDICT.size, address))
        if not welcome:
            raise Refused(f"{address[0]}:{address[1]} refused process {number}: {why.decode(errors='replace')}")
        pings, clock = [], clock or time.monotonic
        for _ in range(PINGS):
            sent_s = clock()
            line.sendall(INSTANT.pack(sent_s))
            (theirs_s,) = INSTANT.unpack(_received(line, INSTANT.size, address))
            pings.append((sent_s, theirs_s, clock()))
    except BaseException:
        line.close()
        raise
    return Peer(_connection(line), offset(pings))


def _bound(own: str, ports: tuple[int, int]) -> socket.socket:
    first, last = ports
    for port in range(first, last + 1):
        with contextlib.suppress(OSError):
            family = socket.AF_INET6 if ":" in own else socket.AF_INET
            return socket.create_server((own, port), family=family, backlog=1024)
    raise StartFailed(f"no port from {first} to {last} of {own} is free: name others, or more of them")


def _proof(key: bytes, role: bytes, sent: bytes) -> bytes:
    return hmac.digest(key, role + b"\0" + sent, "sha256")


def _padded(text: str) -> bytes:
    return text.encode()[:96].ljust(96, b"\0")


def _text(padded: bytes) -> str:
    """The versions that the other end has sent: printable, whatever they were."""
    found = padded.rstrip(b"\0").decode("ascii", errors="replace")
    return found if found.isprintable() else repr(found)


def _send(line: socket.socket, data: bytes) -> None:
    if line.send(data) != len(data):  # it does not read
        raise Refused("a stranger does not listen")


def _received(line: socket.socket, size: int, address: Address) -> bytes:
    data = b""
    while len(data) < size:
        sent = line.recv(size - len(data))
        if not sent:
            raise Refused(f"the listener at {address[0]}:{address[1]} has hung up: it may have another key")
        data += sent
    return data


def _connection(line: socket.socket) -> Connection:
    """The line for what comes now, without waiting for more to be sent along."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.settimeout(None)
    return Connection(line.detach())
