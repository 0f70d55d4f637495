"""Stand in for `python`: hand this start to the server, which forks the program, and live and end with the program.

Python runs this file without `site`, and each start pays for what it imports. Its first argument is its own path.
"""

import _signal  # type: ignore[import-not-found] # what `signal` is made of, without its enums
import _socket
import marshal
import os
import resource
import sys

#: signals that nobody can handle, that end of children raise, and that stop a process until it is continued
KEPT = {
    getattr(_signal, name)
    for name in ("SIGKILL", "SIGSTOP", "SIGCHLD", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT")
    if hasattr(_signal, name)
}
#: signals that every Python ignores from its start
IGNORED_BY_PYTHON = {_signal.SIGPIPE, getattr(_signal, "SIGXFSZ", _signal.SIGPIPE)}
MOST_DESCRIPTORS = 250
GONE = 125


def open_descriptors() -> "list[int]":
    """Return the descriptors that this process was given."""
    found = []
    for name in os.listdir("/dev/fd"):
        try:
            if os.get_inheritable(int(name)):
                found.append(int(name))
        except OSError:
            pass  # the descriptor of the listing itself
    return sorted(found)


def limits() -> "dict[int, tuple[int, int]]":
    """Return the limits of resources, by their numbers."""
    numbers = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    return {number: resource.getrlimit(number) for number in numbers}


def conditions() -> "dict[str, str]":
    """Return properties that a process has from its parent and cannot hand to another process."""
    found = {"user": str((os.getuid(), os.geteuid(), os.getgid(), os.getegid())), "niceness": str(os.nice(0))}
    if hasattr(os, "sched_getaffinity"):
        found["cores"] = str(sorted(os.sched_getaffinity(0)))
    for kind in ("net", "mnt", "pid", "user", "uts", "ipc"):
        try:  # noqa: SIM105 - contextlib takes longer to import than all the rest
            found[kind + " namespace"] = os.readlink("/proc/self/ns/" + kind)
        except OSError:
            pass  # not Linux
    return found


def end_as(status: int) -> None:
    """End this process as the program has ended."""
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != _signal.SIGKILL:
        _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, [])
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def refuse(text: str) -> None:
    """Print why there is no program, and end."""
    os.write(2, f"{sys.argv[0]}: {text}\n".encode())
    os._exit(GONE)


def main() -> None:
    """Ask for the program, pass signals on, and end as the program does."""
    sys.argv[0] = os.path.realpath(sys.argv[0])
    passed_on = [number for number in _signal.valid_signals() if number not in KEPT]
    ignored = [
        number
        for number in passed_on
        if number not in IGNORED_BY_PYTHON and _signal.getsignal(number) == _signal.SIG_IGN
    ]
    descriptors = open_descriptors()
    if len(descriptors) > MOST_DESCRIPTORS:
        refuse(f"{len(descriptors)} open descriptors: at most {MOST_DESCRIPTORS} can be handed on")
    # no signal may be lost, or overtake the request
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, passed_on)
    umask = os.umask(0)
    os.umask(umask)
    request = marshal.dumps(
        {
            "arguments": [os.fsencode(word) for word in sys.argv],
            "environ": dict(os.environb),
            "folder": os.getcwdb(),
            "umask": umask,
            "descriptors": descriptors,
            "ignored": [int(number) for number in ignored],
            "blocked": [int(number) for number in mask],
            "limits": limits(),
            "conditions": conditions(),
        }
    )
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        server.connect(os.path.join(os.path.dirname(sys.argv[0]), "socket"))
        rights = b"".join(number.to_bytes(4, sys.byteorder) for number in descriptors)
        server.sendmsg([len(request).to_bytes(8, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        server.sendall(request)
    except OSError as error:
        refuse(f"the server of its programs is gone ({error}): use it only while its test session lasts")

    def pass_on(number: int, frame: object) -> None:
        try:  # noqa: SIM105 - as above
            # without a wait: the next signal would call this function inside of it, and so on
            server.send(bytes([number]), _socket.MSG_DONTWAIT)
        except OSError:
            pass  # the program has ended, and its answer is on its way; or some hundreds of signals are

    for number in passed_on:
        if number not in ignored and number not in IGNORED_BY_PYTHON:
            _signal.signal(number, pass_on)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    answer = b""
    try:
        while part := server.recv(4096):
            answer += part
    except OSError:
        pass  # the monitor had ended when the last signal came; its answer is read by then
    if answer[:1] == b"=":
        end_as(int(answer[1:]))
    refuse(answer.decode() if answer else "the server of its programs has ended, and this program with it")


if __name__ == "__main__":
    main()
