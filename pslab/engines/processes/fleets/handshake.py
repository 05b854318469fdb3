"""How processes on one or many machines connect: one listens, the others dial, and each proves that it has the pool's
key.

Both ends answer a challenge of the other by an HMAC (RFC 2104) over all bytes sent until then, so that neither can be
replayed or relayed with other bytes. All messages before that have a fixed length, nothing of them is unpickled, and a
stranger that is slow, silent or wrong is dropped within HELLO_LIMIT_S without keeping others waiting. A listener
answers in a thread of its own, whatever its process does: a process that dials waits for none.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import math
import platform
import secrets
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from importlib.metadata import version
from typing import NamedTuple

from pslab.engines.processes.authentication import TaggedLine, Tags
from pslab.engines.processes.fleets.encryption import encrypted
from pslab.errors import ConfigError, StartFailed
from pslab.version import __version__, source_digest

Address = tuple[str, int]
KEY_BYTES = NONCE_BYTES = 32
HELLO_LIMIT_S = 10.0  # for a whole handshake: far hosts take 34 round trips, busy ones longer
TRIES = 3  # of a handshake that was broken off
STRANGERS = 256  # that may be in a handshake at once; the oldest one gives way, and dials again if it has the key
REFUSALS = 64  # that are remembered
HEED_S = 0.1
START_LIMIT_S = 60.0  # in which a process that was started has dialled
PINGS = 32
CLOCK = -(1 << 32)  # instead of its number, from a process that dials for the time alone
WIRE = 4  # raised whenever the bytes of messages, patches or this handshake change

MAGIC = b"pslab\0"
HELLO = struct.Struct(f"<6sq96s{NONCE_BYTES}s")  # of the caller: its number, versions, challenge
ANSWER = struct.Struct(f"<6s96s{NONCE_BYTES}s32s")  # of the listener: its versions, challenge, proof
PROOF, INSTANT, VERDICT = struct.Struct("<32s"), struct.Struct("<d"), struct.Struct("<?255p")


class Refused(StartFailed):
    """A handshake has failed: the other end has another key or other versions, or is no process of pslab."""


class BrokenOff(Refused):
    """A handshake was not ended by the other end; it may be, if it is begun again."""


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


class Protection(NamedTuple):
    """What travels between processes beside the tags of their messages."""

    payload: bool = False  #: see pslab.engines.processes.authentication.Tags
    certificate: bytes = b""  #: see pslab.engines.processes.fleets.encryption; none: nothing is encrypted


PLAIN = Protection()


class Peer(NamedTuple):
    """A line to a process that has proved its number."""

    line: TaggedLine
    clock: Offset  #: of the process that listens, as the one that dialled has measured it


def new_key() -> bytes:
    """The key of one pool: every process that has it may take part."""
    return secrets.token_bytes(KEY_BYTES)


def versions() -> str:
    """The versions that have to be the same on both sides."""
    python = ".".join(platform.python_version_tuple()[:2])
    torch = version("torch").partition("+")[0]  # a host without a GPU may have another build than those with one
    return f"Python {python}, pslab {__version__} ({source_digest()}), torch {torch}, wire {WIRE}"


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
                 clock: Callable[[], float] | None = None, protection: Protection = PLAIN) -> None:  # fmt: skip
        self._key, self._clock, self._protection = key, clock or time.monotonic, protection
        self._socket = _bound(address_in(network), ports)
        self._socket.setblocking(False)
        self.address: Address = self._socket.getsockname()[:2]
        self.refused = deque[str](maxlen=REFUSALS)  #: why others were turned away, the last of them
        self._here: dict[int, TaggedLine] = {}
        self._unfit: dict[int, str] = {}  # processes that have the key, and other versions
        self._arrived = threading.Condition()  # also the lock of these two
        self._callers = dict[socket.socket, _Caller]()
        self._closing, self._closes = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for each in (self._socket, self._closing):
            self._selector.register(each, selectors.EVENT_READ)
        self._answering = threading.Thread(target=self._answer, daemon=True)
        self._answering.start()

    def _answer(self) -> None:
        """Answer every caller at once, until this listener is closed."""
        while self._turn():
            with self._arrived:
                self._arrived.notify_all()

    def accept(
        self, number: int, limit_s: float = START_LIMIT_S, heed: Callable[[], None] = lambda: None
    ) -> TaggedLine:
        """The line of the process with this number, once it has dialled; of two with one number that of the last.
        `heed` is called a few times a second until then: it may raise.

        Raises:
            TimeoutError: it has not, within so many seconds.
            Refused: it has, with other versions than this process.
        """
        until_s = time.monotonic() + limit_s
        while True:
            with self._arrived:
                if number in self._here:
                    return self._here.pop(number)
                if number in self._unfit:
                    raise Refused(self._unfit.pop(number))
                if time.monotonic() > until_s:
                    why = f"; refused: {self.refused[-1]}" if self.refused else ""
                    raise TimeoutError(f"process {number} has not dialled {self.address[0]}:{self.address[1]} within "
                                       f"{limit_s:g} s{why}")  # fmt: skip
                self._arrived.wait(HEED_S)
            heed()

    def _turn(self) -> bool:
        """Wait until a caller sends something, and answer; False when this listener is to be closed."""
        due_s = min((caller.until_s for caller in self._callers.values()), default=math.inf)
        left_s = None if due_s == math.inf else max(0.0, due_s - time.monotonic()) + 1e-3
        for ready, _ in self._selector.select(left_s):
            if ready.fileobj is self._closing:
                return False
            if ready.fileobj is self._socket:
                self._welcome()
            elif (caller := self._callers.get(ready.fileobj)) is not None:  # type: ignore[call-overload]
                self._hear(caller)  # else it has given way
        for caller in [caller for caller in self._callers.values() if caller.until_s < time.monotonic()]:
            self._dismiss(caller, f"a stranger sent nothing more for {HELLO_LIMIT_S:g} s")
        return True

    def close(self) -> None:
        """Stop accepting connections."""
        self._closes.close()
        self._answering.join()
        for caller in list(self._callers.values()):
            self._dismiss(caller, "")
        self._selector.close()
        self._socket.close()
        self._closing.close()
        for line in self._here.values():
            line.close()

    def _welcome(self) -> None:
        with contextlib.suppress(OSError):  # it may have gone again
            line, _ = self._socket.accept()
            line.setblocking(False)
            caller = _Caller(line, self._meet(line))
            caller.wants = next(caller.answers)
            if len(self._callers) >= STRANGERS:
                self._dismiss(next(iter(self._callers.values())), f"more than {STRANGERS} strangers at once")
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
            number, secret = found.value
            self._leave(caller)
            if number == CLOCK:
                caller.line.close()
                return
            with self._arrived:
                if number in self._here:
                    self._here.pop(number).close()
                self._here[number] = _line(caller.line, secret, self._protection, dials=False)
        except (OSError, Refused) as error:
            self._dismiss(caller, str(error))

    def _meet(self, line: socket.socket) -> Generator[int, bytes, tuple[int, bytes]]:
        """The listener's part: it yields how many bytes are to come next, and returns the caller's number, and the
        secret of the line to it."""
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
            with self._arrived:
                self._unfit[number] = f"process {number} cannot take part: {why}"
            raise Refused(f"process {number} cannot take part: {why}")
        for _ in range(PINGS):
            yield INSTANT.size
            _send(line, INSTANT.pack(self._clock()))
        return int(number), _secret(self._key, sent)

    def _leave(self, caller: _Caller) -> None:
        self._selector.unregister(caller.line)
        del self._callers[caller.line]

    def _dismiss(self, caller: _Caller, why: str) -> None:
        self._leave(caller)
        caller.line.close()
        self.refused += [why] if why else []


class _Caller:
    """A process that has dialled, and has not yet proved its number."""

    def __init__(self, line: socket.socket, answers: Generator[int, bytes, tuple[int, bytes]]) -> None:
        self.line, self.answers, self.sent, self.wants = line, answers, b"", 0
        self.until_s = time.monotonic() + HELLO_LIMIT_S


def dial(address: Address, number: int, key: bytes, limit_s: float = START_LIMIT_S,
         clock: Callable[[], float] | None = None, protection: Protection = PLAIN) -> Peer:  # fmt: skip
    """Connect to the process that listens there, as the process of this number; once more if that is broken off.

    Raises:
        Refused: it has another key or other versions, or is no process of pslab.
        OSError: no process listens there, or it does not answer within `limit_s`.
    """
    until_s = time.monotonic() + limit_s
    for left in reversed(range(TRIES)):
        try:
            left_s = max(1e-3, until_s - time.monotonic())
            return _dialled(address, number, key, left_s, clock or time.monotonic, protection)
        except ConnectionRefusedError:  # no process listens there any more
            raise
        except (BrokenOff, OSError):
            if not left or time.monotonic() > until_s:
                raise
    raise AssertionError("the last try raises")


def _dialled(
    address: Address, number: int, key: bytes, limit_s: float, clock: Callable[[], float], protection: Protection
) -> Peer:
    line = socket.create_connection(address, limit_s)
    line.settimeout(min(limit_s, HELLO_LIMIT_S))
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
        pings = []
        for _ in range(PINGS):
            sent_s = clock()
            line.sendall(INSTANT.pack(sent_s))
            (theirs_s,) = INSTANT.unpack(_received(line, INSTANT.size, address))
            pings.append((sent_s, theirs_s, clock()))
    except BaseException:
        line.close()
        raise
    return Peer(_line(line, _secret(key, sent), protection, dials=True), offset(pings))


def _bound(own: str, ports: tuple[int, int]) -> socket.socket:
    first, last = ports
    for port in range(first, last + 1):
        with contextlib.suppress(OSError):
            family = socket.AF_INET6 if ":" in own else socket.AF_INET
            return socket.create_server((own, port), family=family, backlog=1024)
    raise StartFailed(f"no port from {first} to {last} of {own} is free: name others, or more of them")


def _proof(key: bytes, role: bytes, sent: bytes) -> bytes:
    return hmac.digest(key, role + b"\0" + sent, "sha256")


def _secret(key: bytes, sent: bytes) -> bytes:
    """What the two ends of this line have, and no others: both have put in a challenge of their own."""
    return _proof(key, b"line", sent)


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
            raise BrokenOff(f"the listener at {address[0]}:{address[1]} has hung up: it may have another key")
        data += sent
    return data


def _line(line: socket.socket, secret: bytes, protection: Protection, *, dials: bool) -> TaggedLine:
    """The line for what comes now, without waiting for more to be sent along."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if protection.certificate:
        line = encrypted(line, protection.certificate, dials=dials, limit_s=HELLO_LIMIT_S)
    line.settimeout(None)
    found = TaggedLine(line.detach())
    found.tags = Tags(secret, dials=dials, payload=protection.payload)
    return found
