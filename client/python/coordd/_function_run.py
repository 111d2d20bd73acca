"""coordd.run: a function on several processes, each a rank of a job of its own, from a script, a prompt or a notebook."""

import getpass
import multiprocessing.spawn
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import zlib
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from coordd._arguments import workers_if_given
from coordd.exceptions import HorovodInternalError, InvalidArgumentError

try:
    import cloudpickle  # type: ignore[import-untyped,import-not-found,unused-ignore]
except ImportError:
    cloudpickle = None

__all__ = ["run"]

_ALLOCATIONS = ("SLURM_JOB_ID", "LSB_JOBID")  # inside which coordrun finds hosts by itself
_PAGE_PORT = 29651  # of the status page, on the machine of whoever looks at it
_END_WITHIN_S = 15.0  # coordrun ends its workers within 5 s of an interrupt


def run(func: Callable, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None, np: Optional[int] = None,
        hosts: Union[str, Sequence[str], None] = None, *, min_np: Optional[int] = None, max_np: Optional[int] = None,
        start_timeout_s: Optional[float] = None, output_dir: Optional[str] = None, page: Optional[bool] = None,
        coordrun: Sequence[str] = (), python: Optional[str] = None) -> List[Any]:
    """Calls func(*args, **kwargs) in `np` new processes, and returns what it returned in them, by rank.

    The processes are started by coordrun, with a coordd of their own: inside a job of Slurm or LSF on its hosts (`np`: as many as it has
    tasks), else on this machine (`np`: one), or on `hosts`, "h1:4,h2:4". `func` calls init() itself. Each process begins anew, as a
    program that is started does: nothing that this one has imported or computed is there, but what `func` brings along. A function of a
    notebook needs the package cloudpickle; one of a script is found in the script, which each process then imports. Other hosts must see
    the working directory, in which the function and the results lie meanwhile.

    min_np: the others go on without processes that are lost, and results are of those who came to the end; max_np: at most so many.
    start_timeout_s: for all hosts to answer. output_dir: a folder for what the processes print, beside what is shown. page: whether the
    address of the status page is printed, with the line by which ssh brings it to another machine; by default in notebooks and in
    allocations. coordrun: more of its flags. python: the interpreter.

    What the processes print is shown as it comes, with their ranks. Blocks until they have ended; an interrupt ends them.
    HorovodInternalError: a process failed; it names the first one's rank and error. InvalidArgumentError: a number of
    workers is none, there is no coordrun, or other processes cannot find `func`.
    """
    flags = list(coordrun)
    np, min_np, max_np = workers_if_given("np", np), workers_if_given("min_np", min_np), workers_if_given("max_np", max_np)
    for flag, value in (("-np", np), ("--min-np", min_np), ("--max-np", max_np), ("--start-timeout", start_timeout_s),
                        ("--output-dir", output_dir)):
        if value is not None:
            flags += [flag, str(value)]
    if hosts:
        flags += ["-H", hosts if isinstance(hosts, str) else ",".join(hosts)]
    if page if page is not None else (in_notebook() or in_allocation()):
        flags += ["--http", _announced_page()]
    shared = in_allocation() if not hosts else are_others(hosts if isinstance(hosts, str) else ",".join(hosts))
    return call_on_ranks(Call(func, tuple(args), dict(kwargs or {})), flags, expected=np if min_np is None else None, shared=shared,
                         python=python)


class Call(NamedTuple):
    """What every process does."""
    func: Callable
    args: Tuple[Any, ...]
    kwargs: Dict[str, Any]


def call_on_ranks(call: Call, flags: Sequence[str], *, expected: Optional[int], shared: bool, python: Optional[str] = None,
                  module: Sequence[str] = ()) -> List[Any]:
    """Has coordrun start processes with these flags. expected: how many results there have to be; None: those who come to the end are
    enough. shared: other hosts read the function where this process writes it. module: what is to run the task, as `python -m` has
    it."""
    program = find_coordrun()
    if not callable(call.func):
        raise InvalidArgumentError(f"func is {call.func!r}: expected a function", "INVALID_ARGUMENT")
    with tempfile.TemporaryDirectory(prefix=".coordd-run-", dir=os.getcwd() if shared else None) as folder:
        with open(os.path.join(folder, "call"), "wb") as out:
            out.write(_pickled(call))
        command = [program, *flags, "--job", _job_name(call.func), "--", python or sys.executable, *module, "-m", "coordd._function_task", folder]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        status = _follow(command, environment)
        results, failures = _read_results(folder)
    # Without the processes that failed the others came to the end, or they did not.
    if failures and (status != 0 or expected is not None):
        rank, failure = failures[0]
        raise HorovodInternalError(f"run: rank {rank} failed: {failure}")
    of = "" if expected is None else f" of {expected}"
    if status != 0 or not results or (expected is not None and len(results) != expected):
        raise HorovodInternalError(f"run: coordrun ended with status {status}; {len(results)}{of} ranks have a result")
    return [results[rank] for rank in sorted(results)]


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return "ipykernel" in sys.modules and hasattr(sys.modules["ipykernel"], "kernelapp")


def in_allocation() -> bool:
    return any(os.environ.get(name) for name in _ALLOCATIONS)


def _announced_page() -> str:
    """Where the status page of this run is going to be; says how to look at it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    host = socket.gethostname()
    print(f"coordd: status page http://127.0.0.1:{port}/, on this machine, {host}; from another one:\n"
          f"  ssh -N -L {_PAGE_PORT}:127.0.0.1:{port} {getpass.getuser()}@{host}    # then http://127.0.0.1:{_PAGE_PORT}/", flush=True)
    return f"127.0.0.1:{port}"


def _follow(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs it to its end, and shows what it prints where this program's output goes; its exit status."""
    inherits = _is_standard_output(sys.stdout)
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, text=True, errors="replace",
                             stdout=None if inherits else subprocess.PIPE, stderr=None if inherits else subprocess.STDOUT)
    try:
        for line in child.stdout or ():
            print(line, end="", flush=True)
        return child.wait()
    except KeyboardInterrupt:
        _end(child)
        raise


def _is_standard_output(stream: Any) -> bool:
    """False: it is a notebook's, or a test's, which does not see what child processes write."""
    try:
        return bool(stream.fileno() == 1)
    except (AttributeError, OSError, ValueError):
        return False


def _end(child: "subprocess.Popen[str]") -> None:
    """Of an interrupt coordrun has heard itself, in whatever terminal or notebook."""
    for end in (child.terminate, child.kill):
        try:
            child.wait(_END_WITHIN_S)
            return
        except subprocess.TimeoutExpired:
            end()
    child.wait()


def _job_name(func: Callable) -> str:
    """What the job is called: "train.main" for a function main of train.py."""
    module = getattr(func, "__module__", None) or type(func).__module__
    if module == "__main__":
        program = os.path.splitext(os.path.basename(sys.argv[0]))[0].strip("-")
        module = "notebook" if in_notebook() else program or "python"
    name = f"{module}.{getattr(func, '__qualname__', None) or type(func).__qualname__}"
    name = name.replace("<locals>.", "").replace("<lambda>", "lambda")
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", name)
    # What cannot be spelled differs all the same.
    return plain if plain == name and len(name) <= 128 else f"{plain[:119]}-{zlib.crc32(name.encode('utf-8', 'replace')):08x}"


def _read_results(folder: str) -> Tuple[Dict[int, Any], List[Tuple[int, str]]]:
    """({rank: result}, [(rank, failure)]) of the processes that have written one. First are failures of a process's own, not those that
    heard of another's."""
    results: Dict[int, Any] = {}
    failures: List[Tuple[bool, float, int, str]] = []
    for name in sorted(os.listdir(folder)):
        if name.startswith("result-") and not name.endswith(".part"):
            with open(os.path.join(folder, name), "rb") as result:
                written = os.fstat(result.fileno()).st_mtime
                try:
                    rank, failure, value = pickle.load(result)
                except Exception as error:  # of what the result is made by
                    raise HorovodInternalError(f"run: the result of rank {name.rpartition('-')[2]} cannot be read here: "
                                               f"{type(error).__name__}: {error}") from error
            if failure is None:
                results[rank] = value
            else:
                failures.append((value, written, rank, failure))
    return results, [(rank, failure) for _, _, rank, failure in sorted(failures)]


def are_others(hosts: str) -> bool:
    """Whether one of "h1:2,h2" is another machine than this one."""
    here = {"localhost", "127.0.0.1", socket.gethostname(), socket.gethostname().split(".")[0]}
    return not {host.strip().rpartition(":")[0] or host.strip() for host in hosts.split(",") if host.strip()} <= here


def _pickled(call: Call) -> bytes:
    """What _function_task reads: first what it takes to find the names of this program in another process, then the call."""
    if cloudpickle is not None:
        return pickle.dumps(None) + cloudpickle.dumps(tuple(call))
    if getattr(call.func, "__module__", None) == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        raise InvalidArgumentError("run: the function is of a notebook or a prompt, where other processes cannot find it: expected the "
                                   "package cloudpickle (pip install cloudpickle), or a function of a module", "INVALID_ARGUMENT")
    preparation = multiprocessing.spawn.get_preparation_data("coordd._function_task")
    # The rest is multiprocessing's own.
    wanted = ("init_main_from_name", "init_main_from_path", "sys_argv")
    return pickle.dumps({key: value for key, value in preparation.items() if key in wanted}) + pickle.dumps(tuple(call))


def find_coordrun() -> str:
    found = os.environ.get("COORDD_COORDRUN") or shutil.which("coordrun")
    if found:
        return found
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in ("bin", "../../../build/bin"):
        candidate = os.path.normpath(os.path.join(here, folder, "coordrun"))
        if os.access(candidate, os.X_OK):
            return candidate
    raise InvalidArgumentError("run: coordrun is not on PATH; COORDD_COORDRUN may say where it is", "NOT_FOUND")
