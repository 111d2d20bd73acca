"""horovod.run: a function on several processes, each a rank of a job of its own."""

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
from typing import Any, Callable, List, Optional, Sequence

from coordd.exceptions import HorovodInternalError, InvalidArgumentError

try:
    import cloudpickle  # type: ignore[import-untyped,import-not-found,unused-ignore]
except ImportError:
    cloudpickle = None

__all__ = ["run"]

# Arguments of Horovod's that have no counterpart: there is one way to start processes, and no check to cache.
_IGNORED = {"disable_cache", "use_gloo", "use_mpi", "mpi_args"}

# What is the same under two names, and the flag of coordrun that it becomes.
_FLAGS = {"num_proc": "-np", "min_num_proc": "--min-np", "max_num_proc": "--max-np", "slots": "--slots-per-host",
          "reset_limit": "--reset-limit", "start_timeout": "--start-timeout", "ssh_port": "--ssh-port",
          "ssh_identity_file": "--ssh-identity-file", "network_interfaces": "--network-interfaces", "hosts": "-H",
          "hostfile": "--hostfile", "host_discovery_script": "--host-discovery-script", "output_filename": "--output-dir"}
_OTHER_NAMES = {"np": "num_proc", "min_np": "min_num_proc", "max_np": "max_num_proc",
                "network_interface": "network_interfaces"}


def run(func: Callable, args=(), kwargs: Optional[dict] = None, num_proc: Optional[int] = None, hosts: Optional[str] = None,
        hostfile: Optional[str] = None, host_discovery_script: Optional[str] = None, output_filename: Optional[str] = None,
        verbose: Any = None, executable: Optional[str] = None, np: Optional[int] = None, **others: Any) -> List[Any]:
    """Calls func(*args, **kwargs) in `num_proc` (or `np`) new processes, started by coordrun with a coordd of their own; returns
    their results by rank. `func` calls init() itself. Where the package cloudpickle is not installed, a `func` of the running
    script is found in the script, which each process then imports first, as multiprocessing does.

    hosts ("h1:2,h2:2"), hostfile, host_discovery_script: where; without them, on this machine. Other hosts must see the working
    directory, in which `func` and the results then lie for a while. min_num_proc (or min_np): the others go on without processes
    that are lost, as coordd.torch.elastic has it; the results are those of the processes that came to the end. max_num_proc (or
    max_np), slots, reset_limit, cooldown_range (two numbers), start_timeout, ssh_port, ssh_identity_file, network_interfaces: as
    coordrun's flags have them. output_filename: folder for the processes' output. executable: the interpreter. disable_cache,
    use_gloo, use_mpi and mpi_args mean nothing here. HorovodInternalError: a process failed.
    """
    given = {"num_proc": num_proc, "np": np, "hosts": hosts, "hostfile": hostfile,
             "host_discovery_script": host_discovery_script, "output_filename": output_filename, **others}
    flags = _coordrun_flags(given)
    if verbose:
        flags.append("--verbose")
    elastic = "--min-np" in flags or "--host-discovery-script" in flags
    coordrun = _find_coordrun()
    with tempfile.TemporaryDirectory(prefix=".coordd-run-", dir=_shared_folder(hosts, hostfile, host_discovery_script)) as folder:
        with open(os.path.join(folder, "call"), "wb") as call:
            call.write(_pickled((func, tuple(args), kwargs or {})))
        command = [coordrun, *flags, "--job", _job_name(func), "--", executable or sys.executable, "-m", "coordd.horovod", "-m",
                   "coordd.horovod.runner.task", folder]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        status = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode
        results, failures = _read_results(folder)
    # Without the processes that failed the others came to the end, or they did not.
    if failures and (status != 0 or not elastic):
        rank, failure = failures[0]
        raise HorovodInternalError(f"run: rank {rank} failed: {failure}")
    expected = "" if elastic or (num_proc or np) is None else f" of {num_proc or np}"
    if status != 0 or not results or (expected and len(results) != (num_proc or np)):
        raise HorovodInternalError(f"run: coordrun ended with status {status}; {len(results)}{expected} ranks have a result")
    return [results[rank] for rank in sorted(results)]


def _job_name(func: Callable) -> str:
    """What the job is called: "train.main" for a function main of train.py."""
    module = getattr(func, "__module__", None) or type(func).__module__
    if module == "__main__":
        module = os.path.splitext(os.path.basename(sys.argv[0]))[0].strip("-") or "python"
    name = f"{module}.{getattr(func, '__qualname__', None) or type(func).__qualname__}"
    name = name.replace("<locals>.", "").replace("<lambda>", "lambda")
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", name)
    # What cannot be spelled differs all the same.
    return plain if plain == name and len(name) <= 128 else f"{plain[:119]}-{zlib.crc32(name.encode('utf-8', 'replace')):08x}"


def _coordrun_flags(given: dict) -> List[str]:
    named: dict = {}
    for name, value in given.items():
        if value is None or name in _IGNORED:
            continue
        name = _OTHER_NAMES.get(name, name)
        if name not in _FLAGS and name != "cooldown_range":
            raise TypeError(f"run() got an unexpected argument {name!r}")
        named[name] = value
    if not {"num_proc", "hosts", "hostfile", "host_discovery_script"} & set(named):
        named["num_proc"] = 1
    flags: List[str] = []
    for name, value in named.items():
        if name == "cooldown_range":
            low, high = value
            flags += ["--blacklist-cooldown-range", str(low), str(high)]
            continue
        listed = isinstance(value, Sequence) and not isinstance(value, str)
        flags += [_FLAGS[name], ",".join(value) if listed else str(value)]
    return flags


def _read_results(folder: str):
    """({rank: result}, [(rank, failure)]) of the processes that have written one."""
    results, failures = {}, []
    for name in sorted(os.listdir(folder)):
        if name.startswith("result-") and not name.endswith(".part"):
            with open(os.path.join(folder, name), "rb") as result:
                rank, failure, value = pickle.load(result)
            if failure is None:
                results[rank] = value
            else:
                failures.append((rank, failure))
    return results, failures


def _shared_folder(hosts: Optional[str], hostfile: Optional[str], script: Optional[str]) -> Optional[str]:
    """Where processes on all hosts see a file; None: they are all on this machine."""
    here = {"localhost", "127.0.0.1", socket.gethostname(), socket.gethostname().split(".")[0]}
    named = {host.strip().rpartition(":")[0] or host.strip() for host in (hosts or "").split(",") if host.strip()}
    return None if named <= here and not hostfile and not script else os.getcwd()


def _pickled(call) -> bytes:
    """What runner.task reads: first what it takes to find the names of this program in another process, then the call."""
    preparation = None if cloudpickle else multiprocessing.spawn.get_preparation_data("coordd.horovod.runner.task")
    if preparation is not None:  # the rest is multiprocessing's own
        wanted = ("init_main_from_name", "init_main_from_path", "sys_argv")
        preparation = {key: value for key, value in preparation.items() if key in wanted}
    return pickle.dumps(preparation) + (cloudpickle or pickle).dumps(call)


def _find_coordrun() -> str:
    found = os.environ.get("COORDD_COORDRUN") or shutil.which("coordrun")
    if found:
        return found
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in ("../../bin", "../../../../../build/bin"):
        candidate = os.path.normpath(os.path.join(here, folder, "coordrun"))
        if os.access(candidate, os.X_OK):
            return candidate
    raise InvalidArgumentError("run: coordrun is not on PATH; COORDD_COORDRUN may say where it is", "NOT_FOUND")
