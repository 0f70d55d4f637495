"""Open the board of a job, which the first machine serves at the address that was given."""

from __future__ import annotations

import errno
import socket
import time

from accel_state.errors import CannotRun

from accel_launch.nodes.board import Board
from accel_launch.nodes.board_server import BoardServer
from accel_launch.nodes.node_spec import NodeSpec
from accel_launch.nodes.silence import SILENT
from accel_launch.supervise.signals import SignalSource

#: seconds between two tries to reach a machine that does not answer yet; and for one try
RETRY_S, TRY_S = 0.25, 2.0
#: seconds in which the name of the first machine has to be known, unless names come up with machines
KNOWN_S = 10.0
#: seconds between two looks at what has come, and for signals
LOOK_S = 0.05


def serve_board(node: NodeSpec, name: str, source: SignalSource, wait_s: float) -> tuple[BoardServer, Board]:
    """Return the server of the board, on this machine, and its own view of it.

    Args:
        node: Place at which the machines meet; its name may become known in the time.
        name: Name of this launcher.
        source: Signals that end the wait.
        wait_s: Seconds to wait for the name; 0 for none.

    Raises:
        CannotRun: It cannot be served.
        Interrupted: A signal has ended the wait.
    """
    listening = _listen(node, time.monotonic() + wait_s, source)
    connection = socket.socket(listening.family)
    connection.connect(listening.getsockname())
    return BoardServer(listening, name), Board(connection, name)


def join_board(node: NodeSpec, name: str, source: SignalSource, wait_s: float, *, patient: bool) -> Board:
    """Return the board that the first machine serves.

    Args:
        node: Place at which the machines meet.
        name: Name of this launcher.
        source: Signals that end the wait.
        wait_s: Seconds in which the first machine has to answer.
        patient: Wait for a name that nobody knows yet.

    Raises:
        CannotRun: It is not reached in the time, or says nothing.
        Interrupted: A signal has ended the wait.
    """
    until = time.monotonic() + wait_s
    known_until = until if patient else min(until, time.monotonic() + KNOWN_S)
    while True:
        deadline, problem = until, not_begun(node, wait_s)
        try:
            timeout = max(min(TRY_S, until - time.monotonic()), RETRY_S)
            board = Board(socket.create_connection((node.host, node.port), timeout=timeout), name)
            while not board.greeted and board.lost is None and time.monotonic() < until:
                source.pause(LOOK_S)
            if board.greeted:
                return board
            if str(board.lost) == SILENT:
                raise CannotRun(
                    "launch",
                    [
                        f"machine 0, {node.host}, is gone: {SILENT} (it was stopped, or another program has port"
                        f" {node.port} there)"
                    ],
                )
            # a proxy may stand before a machine that does not serve yet
        except socket.gaierror as error:
            problem, deadline = (
                _no_answer(node, wait_s, f"there is no machine of that name: {error.strerror}"),
                known_until,
            )
        except OSError as error:
            problem = _no_answer(node, wait_s, error.strerror or str(error))
        if time.monotonic() + RETRY_S >= deadline:
            raise problem
        source.pause(RETRY_S)


def not_begun(node: NodeSpec, wait_s: float) -> CannotRun:
    """Return the error of a machine that has waited in vain for the first machine."""
    return CannotRun("launch", [f"machine 0, {node.host}, has not begun within {wait_s:g} s"])


def _listen(node: NodeSpec, known_until: float, source: SignalSource) -> socket.socket:
    """Return the socket of the first machine, to which the others come."""
    try:
        while True:
            try:
                family, _, _, _, address = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)[0]
                break
            except socket.gaierror:
                if time.monotonic() >= known_until:
                    raise
                source.pause(RETRY_S)
        if str(address[0]).startswith("127.") and node.host != "localhost" and not node.host.startswith("127."):
            raise OSError(f"this machine takes that name for {address[0]}, which no other can reach: give its address")
        return socket.create_server(address, family=family, backlog=socket.SOMAXCONN)
    except OSError as error:
        again = ", where no other launcher has machine_rank 0" if error.errno == errno.EADDRINUSE else ""
        why = error.strerror.partition(" (")[0] if error.strerror else error
        raise CannotRun(
            "launch",
            [
                f"the other machines cannot be met at {node.host}:{node.port} ({why}):"
                " main_process_ip has to be a name or address of the machine with machine_rank 0, which is this one,"
                f" {socket.gethostname()}, and main_process_port a free port of it{again}"
            ],
        ) from error


def _no_answer(node: NodeSpec, wait_s: float, why: str) -> CannotRun:
    return CannotRun(
        "launch",
        [
            f"machine 0 does not answer at {node.host}:{node.port} ({why}; tried for {wait_s:.3g} s): start"
            " accel launch there with --machine_rank 0, and check --main_process_ip and --main_process_port"
        ],
    )
