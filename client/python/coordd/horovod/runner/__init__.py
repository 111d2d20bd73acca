"""horovod.run: a function on several processes, each a rank of a job of its own."""

from typing import Any, Callable, List, Optional, Sequence

from coordd._arguments import checked_workers
from coordd._function_run import Call, are_others, call_on_ranks

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
_WORKERS = {"num_proc", "min_num_proc", "max_num_proc", "slots"}


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
    use_gloo, use_mpi and mpi_args mean nothing here. HorovodInternalError: a process failed. ValueError: a number
    of workers is none.
    """
    given = {"num_proc": num_proc, "np": np, "hosts": hosts, "hostfile": hostfile,
             "host_discovery_script": host_discovery_script, "output_filename": output_filename, **others}
    flags = _coordrun_flags(given)
    if verbose:
        flags.append("--verbose")
    elastic = "--min-np" in flags or "--host-discovery-script" in flags
    # `import horovod` in the function finds coordd.
    return call_on_ranks(Call(func, tuple(args), kwargs or {}), flags, expected=None if elastic else num_proc or np,
                         shared=bool(hostfile or host_discovery_script) or are_others(hosts or ""), python=executable,
                         module=("-m", "coordd.horovod"))


def _coordrun_flags(given: dict) -> List[str]:
    named: dict = {}
    for name, value in given.items():
        if value is None or name in _IGNORED:
            continue
        known = _OTHER_NAMES.get(name, name)
        if known in _WORKERS:
            value = checked_workers(name, value)
        name = known
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
