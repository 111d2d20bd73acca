"""horovod.run: a function on several local processes, each a rank of a job of its own."""

import multiprocessing.spawn
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Callable, List, Optional

from coordd.exceptions import HorovodInternalError, InvalidArgumentError, UnsupportedError

try:
    import cloudpickle  # type: ignore[import-untyped,import-not-found,unused-ignore]
except ImportError:
    cloudpickle = None

__all__ = ["run"]

# Arguments of Horovod's that mean something that coordrun does by itself, or that has no counterpart.
_IGNORED = {"start_timeout", "ssh_port", "ssh_identity_file", "disable_cache", "use_gloo", "use_mpi", "mpi_args",
            "network_interface", "network_interfaces", "reset_limit", "cooldown_range", "slots", "min_num_proc",
            "max_num_proc", "min_np", "max_np"}


def run(func: Callable, args=(), kwargs: Optional[dict] = None, num_proc: Optional[int] = None, hosts: Optional[str] = None,
        hostfile: Optional[str] = None, host_discovery_script: Optional[str] = None, output_filename: Optional[str] = None,
        verbose: Any = None, executable: Optional[str] = None, np: Optional[int] = None, **others: Any) -> List[Any]:
    """Calls func(*args, **kwargs) in `num_proc` (or `np`) new processes on this machine, started by coordrun with a coordd of
    their own; returns their results by rank. `func` calls init() itself. Where the package cloudpickle is not installed, a `func`
    of the running script is found in the script, which each process then imports first, as multiprocessing does.

    output_filename: folder for the processes' output. executable: the interpreter. Other arguments of horovod.run are
    accepted and mean nothing here. NotImplementedError: other hosts. HorovodInternalError: a process failed.
    """
    del verbose
    if hosts or hostfile or host_discovery_script:
        raise UnsupportedError("run: hosts, hostfile and host_discovery_script are not in this version; start the processes "
                               "with coordrun or srun", "UNIMPLEMENTED")
    unknown = sorted(set(others) - _IGNORED)
    if unknown:
        raise TypeError(f"run() got an unexpected argument {unknown[0]!r}")
    processes = num_proc or np or 1
    coordrun = _find_coordrun()
    with tempfile.TemporaryDirectory(prefix="coordd-run-") as folder:
        with open(os.path.join(folder, "call"), "wb") as call:
            call.write(_pickled((func, tuple(args), kwargs or {})))
        command = [coordrun, "-np", str(processes), *(["--output-dir", output_filename] if output_filename else []), "--",
                   executable or sys.executable, "-m", "coordd.horovod", "-m", "coordd.horovod.runner.task", folder]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        status = subprocess.run(command, env=environment, check=False).returncode
        results = {}
        for name in os.listdir(folder):
            if name.startswith("result-") and not name.endswith(".part"):
                with open(os.path.join(folder, name), "rb") as result:
                    rank, failure, value = pickle.load(result)
                if failure is not None:
                    raise HorovodInternalError(f"run: rank {rank} failed: {failure}")
                results[rank] = value
    if status != 0 or len(results) != processes:
        raise HorovodInternalError(f"run: coordrun ended with status {status}; {len(results)} of {processes} ranks have a "
                                   "result")
    return [results[rank] for rank in sorted(results)]


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
