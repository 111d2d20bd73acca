"""Which coordd a group uses, and which job of it: its rank 0 says so in the group's own store.

Where a launcher of ours has named one (COORDD_ADDR) that is it. Otherwise rank 0 starts one, which ends with it: on loopback when all
ranks are on one machine, else for all, with certificates that travel through the store, as torch's own secrets do.
"""

import json
import os
import socket
import subprocess
import tempfile
from typing import Any, Dict, List, Optional

from coordd import _library, _native, _own_process, _programs, _stacks
from coordd.exceptions import CoorddError, InvalidArgumentError

_READY_S = 30.0
_LONGEST_WINDOW_S = 3600.0  # that coordd takes
_JOB_BYTES = 104  # with what follows it is a name still; a worker's certificate for a job is good for what is called after it
_TLS = {"tls_ca": "ca.crt", "tls_cert": "worker.crt", "tls_key": "worker.key"}

_found: Dict[str, Any] = {}  # how this process reaches the coordd that it has found first
_started: "List[subprocess.Popen[bytes]]" = []
_of_parents: "List[subprocess.Popen[bytes]]" = []


def join(store, rank: int, size: int, timeout_s: float, recovers: bool) -> _native.Worker:
    """A worker of a job that is this group's. Collective: all members of the group. `recovers`: the others may go on without one that is
    lost. HorovodInternalError: coordd cannot be reached, or a member does not come."""
    _own_process.require()  # before others count on this one
    turn = (store.add("coordd/members", 1) - 1) // size  # a store may serve groups of the same name one after the other
    store.set(f"coordd/{turn}/host/{rank}", _host())
    key = f"coordd/{turn}/place"
    if rank == 0:
        job = _native.launch().job[:_JOB_BYTES] or "torch"
        place = {**(_known() or _start(store, turn, size)), "job": f"{job}.group-{os.urandom(8).hex()}"}
        store.set(key, json.dumps(place))
    place = json.loads(store.get(key))
    job = place.pop("job")
    options = _reach(place)
    if recovers:
        # It begins with all of them all the same.
        options.update(min_workers=_least(size), settling_window_seconds=min(timeout_s, _LONGEST_WINDOW_S), on_failure="raise")
    else:
        options.update(min_workers=size, on_failure="end")
    return _native.Worker(job=job, max_workers=size, has_launcher_rank=1, launcher_rank=rank, launcher_local_rank=-1,
                          join_timeout_seconds=timeout_s, collective_timeout_seconds=timeout_s, **_stacks.options(), **options)


def _least(size: int) -> int:
    """How many members go on at least."""
    text = os.environ.get("COORDD_MIN_WORKERS") or "1"
    if not text.isdecimal() or int(text) < 1:
        raise InvalidArgumentError(f'COORDD_MIN_WORKERS is "{text}", expected a whole number from 1 on', "INVALID_ARGUMENT")
    return min(size, int(text))


def use(coordinator: str) -> None:
    """For groups that are made from now on, unless one is in use."""
    if not _found:
        _found["coordinator"] = coordinator


def _known() -> Optional[Dict[str, Any]]:
    if _found:
        return dict(_found)
    address = os.environ.get("COORDD_ADDR", "")
    return {"coordinator": address} if address not in ("", "auto") else None


def _reach(place: Dict[str, Any]) -> Dict[str, Any]:
    """Options of a worker. Files are written once in a process."""
    if _found.get("coordinator") != place["coordinator"]:
        _found.clear()
        _found.update(place)
    if "tls" not in place:
        return {"coordinator": place["coordinator"]}
    if "folder" not in _written or _written["of"] != place["coordinator"]:
        _written.update(folder=tempfile.mkdtemp(prefix="coordd-torch-"), of=place["coordinator"])
        for option, text in place["tls"].items():
            path = os.path.join(_written["folder"], _TLS[option])
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
                file.write(text)
    return {"coordinator": place["coordinator"],
            **{option: os.path.join(_written["folder"], name) for option, name in _TLS.items()}}


_written: Dict[str, str] = {}  # where this process has put certificates, and of which coordd


def _host() -> str:
    """Equal in processes that reach each other on loopback."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()


def _start(store, turn: int, size: int) -> Dict[str, Any]:
    hosts = {store.get(f"coordd/{turn}/host/{rank}") for rank in range(size)}
    if len(hosts) == 1:
        return {"coordinator": _start_coordd("127.0.0.1:0")}
    name = os.environ.get("MASTER_ADDR") or socket.getfqdn()
    with tempfile.TemporaryDirectory(prefix="coordd-torch-") as folder:
        certificates = os.path.join(folder, "tls")
        ended = subprocess.run([_program("coordctl"), "certs", certificates, "--name", name, "--name", socket.gethostname()],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if ended.returncode != 0:
            raise CoorddError(f"coordctl cannot make certificates for {name}: {ended.stderr.strip()}", "UNAVAILABLE")
        server = [f"--tls-{kind}={os.path.join(certificates, file)}" for kind, file in
                  (("cert", "server.crt"), ("key", "server.key"), ("ca", "ca.crt"))]
        address = _start_coordd("0.0.0.0:0", *server)
        tls = {}
        for option, file in _TLS.items():
            with open(os.path.join(certificates, file), encoding="ascii") as text:
                tls[option] = text.read()
    return {"coordinator": f"{name}:{address.rpartition(':')[2]}", "tls": tls}


def _start_coordd(listen: str, *options: str) -> str:
    """Its address. Ends with this process."""
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            [_program("coordd"), "--listen", listen, "--http", "off", "--connection-file", "", "--store", "memory",
             "--log-level", "error", "--exit-with", str(os.getpid()), "--ready-fd", str(writing), *options],
            pass_fds=[writing], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    finally:
        os.close(writing)
    _started.append(process)
    with os.fdopen(reading) as ready:
        said = ready.readline()
    if not said:
        assert process.stderr is not None
        raise CoorddError(f"coordd has not started: {process.stderr.read().decode(errors='replace').strip()}", "UNAVAILABLE")
    return json.loads(said)["listen"]


def _program(name: str) -> str:
    beside = os.path.dirname(os.path.dirname(os.path.realpath(_library.library().path)))
    candidates = [os.path.join(beside, "bin", name), *_programs.candidates(name)]  # of the library's build first
    for path in candidates:
        if os.path.exists(path):
            return path
    raise CoorddError(f"the program {name} was found nowhere; looked at {', '.join(candidates)}; start one and set COORDD_ADDR",
                      "NOT_FOUND")


def forget_after_fork() -> None:
    """In the child: the coordd of its parent ends with the parent."""
    if _started:
        _found.clear()
    _of_parents.extend(_started)
    _started.clear()


os.register_at_fork(after_in_child=forget_after_fork)
