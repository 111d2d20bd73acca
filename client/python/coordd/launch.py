"""Starting the workers of jobs from a program, for whoever has processes already: coordd.ray, coordd.spark and coordd.dask stand on it.

    from coordd import launch

    with launch.Coordinator() as coordinator:           # a coordd that ends with this process
        job = coordinator.job("train", size=4)          # can be pickled, and handed to others
        ...
    # in process number r of four, wherever it runs:
    with job.member(r):
        train()                                         # whose init() finds the job

A Coordinator may serve any number of jobs, one after the other or at the same time: names and tokens hold them apart.
"""

import contextlib
import json
import os
import re
import secrets
import select
import shutil
import subprocess
import tempfile
import time
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from coordd import _basics, _ends, _programs
from coordd._arguments import check_on_failure, checked_workers, workers_if_given
from coordd.exceptions import HorovodInternalError, InvalidArgumentError

__all__ = ["Coordinator", "Job", "Member", "Reach", "fail", "job_name"]

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_TLS_FILES = {"COORDD_TLS_CA": "ca.crt", "COORDD_TLS_CERT": "worker.crt", "COORDD_TLS_KEY": "worker.key"}
_END_TIMEOUT_S = 10.0  # coordd tells its workers and closes its ports within 2 s
_REPORT_TIMEOUT_S = 30.0
# What says which job this process is in, and who it is there. A job's own values take the place of all of them.
_PLACE = ("COORDD_ADDR", "COORDD_JOB_ID", "COORDD_TOKEN_FILE", "COORDD_TLS_CA", "COORDD_TLS_CERT", "COORDD_TLS_KEY", "COORDD_LAUNCHER",
          "COORDD_RANK", "COORDD_SIZE", "COORDD_LOCAL_RANK", "COORDD_LOCAL_SIZE", "COORDD_NODE_RANK", "COORDD_MIN_WORKERS",
          "COORDD_MAX_WORKERS", "COORDD_SETTLING_WINDOW", "COORDD_JOIN_TIMEOUT", "COORDD_LAUNCH_ID", "COORDD_ON_FAILURE",
          "COORDD_NODE_SESSION", "COORDD_TORCH_ENV")


def fail(what: str) -> None:
    """Ends this process's membership as an error that ends a program would, while the process lives on, as a worker of Ray, Spark or
    Dask does when the function that it was given has raised: the pending calls of the others fail with `what`, one sentence, or they
    go on without this rank where they can. init() may be called again. Does nothing when the process is not a member. Blocks for 2 s at
    most, until coordd has heard of it."""
    _basics.give_up(what)


def job_name(prefix: str) -> str:
    """A name that no other job has: "ray-3f0c...". `prefix`: letters, digits, '.', '_' and '-'; others become '-'."""
    return f"{re.sub('[^A-Za-z0-9._-]', '-', prefix)[:100]}-{secrets.token_hex(4)}"


class Member(NamedTuple):
    """A worker of a job, as coordd knows it."""
    rank: int
    hostname: str
    pid: int
    launch: str  # as Job.environment had it; "": nothing


class Job(NamedTuple):
    """A job of a coordd, with all that its workers need to be members of it. Can be pickled; whoever has it can join the job."""
    name: str
    size: int  # at most so many workers
    token: str
    certificates: Dict[str, str]  # {file name: PEM}; empty: coordd speaks without TLS, on one machine
    variables: Dict[str, str]  # that are the same on all workers

    def named(self, name: str) -> "Job":
        """The same job under another name, for when its processes are started anew: it has nothing to do with those of before."""
        return self._replace(name=name, variables={**self.variables, "COORDD_JOB_ID": name})

    def environment(self, rank: int, folder: str, launch: str = "") -> Dict[str, str]:
        """What a process has to have in its environment to be a worker with this `rank`, which is a hint. Writes the job's secrets into
        `folder`, which has to be there as long as the process may call init(), and which others should not be able to read. `launch`: a
        name under which Coordinator.report_end() tells how the process has ended, another one for each start of a process. The others then
        hear of its loss together with the reason, or without it after half a second or so."""
        secret = {"token": self.token, **self.certificates}
        for name, text in secret.items():
            with open(os.path.join(folder, name), "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(text)
        variables = {**self.variables, "COORDD_RANK": str(rank), "COORDD_TOKEN_FILE": os.path.join(folder, "token")}
        if self.certificates:
            variables.update({name: os.path.join(folder, file) for name, file in _TLS_FILES.items()})
        if launch:
            variables["COORDD_LAUNCH_ID"] = launch
        return variables

    def enter(self, rank: int, launch: str = "") -> str:
        """Makes this process a worker of the job, in what its next init() reads; takes the place of what the environment says of other
        jobs. Returns the folder with the job's secrets, which member() and the caller remove. Not thread-safe, as os.environ is not."""
        folder = tempfile.mkdtemp(prefix="coordd-job-")
        variables = self.environment(rank, folder, launch)
        for name in _PLACE:
            os.environ.pop(name, None)
        os.environ.update(variables)
        return folder

    @contextlib.contextmanager
    def member(self, rank: int, launch: str = "") -> Iterator[None]:
        """A block in which init() makes this process a member of the job. At its end the process leaves the job; an error that leaves the
        block is told to the others, as by fail(). The environment is then as before."""
        before = {name: os.environ[name] for name in (*_PLACE, *self.variables) if name in os.environ}
        folder = self.enter(rank, launch)
        try:
            try:
                yield
            except BaseException as error:
                if not isinstance(error, GeneratorExit) and not (isinstance(error, SystemExit) and not error.code):
                    fail(_ends.describe(type(error), error, error.__traceback__))
                raise
            finally:
                _basics.shutdown()
        finally:
            for name in (*_PLACE, *self.variables):
                os.environ.pop(name, None)
            os.environ.update(before)
            shutil.rmtree(folder, ignore_errors=True)


class Reach(NamedTuple):
    """How to reach a coordd. Can be pickled; whoever has it can make jobs there."""
    address: str  # "host:port"
    http: str  # of the status page, on the machine of coordd
    certificates: Dict[str, str]  # {file name: PEM} of workers

    def job(self, name: Optional[str] = None, *, size: int, min_workers: Optional[int] = None, on_failure: str = "raise",
            settling_window_s: Optional[float] = None, join_timeout_s: float = 300.0, token: Optional[str] = None,
            variables: Optional[Mapping[str, str]] = None) -> Job:
        """A job of `size` workers, which begins when all are there. It is only made when the first of them joins.

        name:        no other job of this coordd has it at this time; "job-3f0c..." by default.
        min_workers: the job is elastic: it begins when no further worker has come for `settling_window_s` (30 s by default) and so many
                     are there, and goes on without those that are lost as long as so many are left. on_failure: "raise" or "continue", as
                     COORDD_ON_FAILURE has it.
        token:       the job's secret; made by default.
        variables:   more of them, the same on all workers, such as COORDD_TIMEOUT.
        ValueError: numbers that do not fit together.
        """
        size, min_workers = checked_workers("size", size), workers_if_given("min_workers", min_workers)
        if min_workers is not None and min_workers > size:
            raise InvalidArgumentError(f"a job of {size} workers, at least {min_workers}: expected 1 <= min_workers <= size",
                                       "INVALID_ARGUMENT")
        check_on_failure(on_failure)
        name = name or job_name("job")
        common = {"COORDD_ADDR": self.address, "COORDD_JOB_ID": name, "COORDD_SIZE": str(size), "COORDD_LAUNCHER": "coordd",
                  "COORDD_JOIN_TIMEOUT": str(join_timeout_s)}
        if min_workers is not None:
            window = 30.0 if settling_window_s is None else settling_window_s
            common.update(COORDD_MIN_WORKERS=str(min_workers), COORDD_MAX_WORKERS=str(size), COORDD_ON_FAILURE=on_failure,
                          COORDD_SETTLING_WINDOW=str(window))
        return Job(name, size, token or secrets.token_hex(32), self.certificates, {**common, **(variables or {})})


class Coordinator:
    """A coordd that this process has started on its machine. It ends with the process, or by close(). Thread-safe."""

    def __init__(self, host: str = "127.0.0.1", *, arguments: Sequence[str] = (), start_timeout_s: float = 30.0):
        """Blocks until coordd is there. `host`: the name or address by which workers reach this machine; beyond loopback there is mutual
        TLS, with certificates that are made for this coordd alone. `arguments`: more of coordd's, such as ["--max-jobs", "100"].
        HorovodInternalError: it did not start, and why."""
        self._folder = tempfile.mkdtemp(prefix="coordd-launch-")  # mode 0700
        self._process: Optional[subprocess.Popen] = None
        try:
            secured = host not in _LOOPBACK
            tls = os.path.join(self._folder, "tls")
            flags = ["--listen", f"{_bracketed(host)}:0"]
            if secured:
                _run([_program("coordctl"), "certs", tls, "--name", host], start_timeout_s)
                flags = ["--listen", "[::]:0" if ":" in host else "0.0.0.0:0", "--tls-cert", f"{tls}/server.crt", "--tls-key",
                         f"{tls}/server.key", "--tls-ca", f"{tls}/ca.crt"]
            said = self._start([*flags, "--http", "127.0.0.1:0", "--store", "memory", "--connection-file", "", "--log-level", "warning",
                                "--exit-with", str(os.getpid()), "--remove-directory", self._folder, *arguments], start_timeout_s)
            files = _TLS_FILES.values() if secured else ()
            certificates = {name: _read(os.path.join(tls, name)) for name in files}
            port = said["listen"].rpartition(":")[2]
            self.reach = Reach(f"{_bracketed(host)}:{port}", said.get("http") or "", certificates)
            self._tls = [f"--tls-ca={tls}/ca.crt", f"--tls-cert={tls}/operator.crt", f"--tls-key={tls}/operator.key"] if secured else []
        except BaseException:
            self.close()
            raise

    def _start(self, flags: List[str], timeout_s: float) -> Dict[str, Any]:
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as ready, open(os.path.join(self._folder, "stderr"), "w+b") as said:
            try:
                self._process = subprocess.Popen([_program("coordd"), *flags, "--ready-fd", str(writing)], pass_fds=[writing],
                                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said)
            finally:
                os.close(writing)
            in_time = select.select([ready], [], [], timeout_s)[0]
            line = ready.readline() if in_time else b""
            if line:
                return json.loads(line)
            said.seek(0)
            why = said.read(4096).decode(errors="replace").strip() or "it said nothing"
        raise HorovodInternalError(f"coordd {'did not start' if in_time else f'was not there after {timeout_s:g} s'}: {why}", "UNAVAILABLE")

    @property
    def address(self) -> str:
        """ "host:port", for workers."""
        return self.reach.address

    def job(self, name: Optional[str] = None, **arguments: Any) -> Job:
        """A job of this coordd: see Reach.job."""
        return self.reach.job(name, **arguments)

    def members(self, job: Job) -> List[Member]:
        """Who is in the job's generation now; nobody where coordd knows no such job. Blocks for some milliseconds."""
        try:
            said = json.loads(_run([*self._coordctl("status", job), "--json"], _REPORT_TIMEOUT_S))
        except (OSError, ValueError, HorovodInternalError):
            return []
        return [Member(one["rank"], one["hostname"], one["pid"], one["launch"]) for found in said["jobs"] for one in found["workers"]
                if one["rank"] >= 0]

    def _coordctl(self, command: str, job: Job) -> List[str]:
        return [_program("coordctl"), command, job.name, f"--coordinator={self.address}", *self._tls]

    def report_end(self, job: Job, launch: str, *, status: Optional[int] = None, signal: Optional[int] = None, reason: str = "",
                   last_words: Sequence[str] = ()) -> bool:
        """Tells coordd how the process with this `launch` (Job.environment) has ended, for the errors of the others, the events and the
        status page: by an exit `status`, by a `signal`, or nobody has seen how. `reason`: one phrase, such as "out of memory".
        `last_words`: its last lines on stderr. Blocks for some milliseconds. False: coordd could not be told, which is nobody's error."""
        how = ["--unseen"] if status is None and signal is None else [f"--status={status}"] if signal is None else [f"--signal={signal}"]
        command = [*self._coordctl("ended", job), f"--launch={launch}", *how, f"--reason={reason}",
                   *(f"--line={line}" for line in last_words[-5:])]
        try:
            with tempfile.NamedTemporaryFile(prefix="token-", dir=self._folder) as token:  # mode 0600
                token.write(job.token.encode())
                token.flush()
                _run([*command, f"--token-file={token.name}"], _REPORT_TIMEOUT_S)
        except (OSError, HorovodInternalError):
            return False
        return True

    def close(self) -> None:
        """Ends coordd; jobs that still run end with it. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_TIMEOUT_S)
            process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "Coordinator":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _program(name: str) -> str:
    for path in [*_programs.candidates(name), shutil.which(name)]:
        if path and os.access(path, os.X_OK):
            return path
    raise HorovodInternalError(f"{name} was found nowhere; looked at {', '.join(_programs.candidates(name))} and PATH", "NOT_FOUND")


def _run(command: List[str], timeout_s: float) -> bytes:
    began = time.monotonic()
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s,
                               check=False)
    except subprocess.TimeoutExpired:
        raise HorovodInternalError(f"{os.path.basename(command[0])} had not ended after {time.monotonic() - began:.0f} s",
                                   "DEADLINE_EXCEEDED") from None
    if ended.returncode != 0:
        raise HorovodInternalError(ended.stdout.decode(errors="replace").strip() or f"{command[0]}: status {ended.returncode}")
    return ended.stdout
