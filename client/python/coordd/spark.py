"""coordd on Spark, with the name of horovod.spark: the tasks of a barrier stage are the workers of a job.

    import coordd.spark

    results = coordd.spark.run(train, args=(10,), num_proc=4)  # by rank; train() calls hvd.init() itself
"""

import os
import secrets
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from pyspark import BarrierTaskContext, SparkContext

from coordd import _basics, launch
from coordd.exceptions import HorovodInternalError, InvalidArgumentError

__all__ = ["run"]

# Arguments of Horovod's that have no counterpart: Spark starts the processes, and keeps what they print.
_IGNORED = {"use_mpi", "use_gloo", "extra_mpi_args", "stdout", "stderr", "verbose", "nics", "prefix_output_with_timestamp", "executable"}


def run(fn: Callable, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None, num_proc: Optional[int] = None,
        start_timeout: Optional[float] = None, env: Optional[Mapping[str, str]] = None, *, job: Optional[str] = None,
        **others: Any) -> List[Any]:
    """Calls fn(*args, **kwargs) in `num_proc` tasks of the active Spark session that run at the same time; returns their results by rank.
    `fn` calls init() itself.

    num_proc:      as many as the session runs tasks in parallel by default.
    start_timeout: seconds until all of them have joined; COORDD_JOIN_TIMEOUT's default otherwise.
    env:           variables for the tasks, such as COORDD_TIMEOUT.
    job:           how the job's name begins; each attempt of the stage is a job of its own. "spark-3f0c..." by default.
    use_mpi, use_gloo, extra_mpi_args, stdout, stderr, verbose, nics, prefix_output_with_timestamp and executable mean nothing here.

    coordd runs beside the driver, and workers reach it at spark.driver.host: beyond loopback by mutual TLS, with certificates and a token
    that Spark carries to the tasks. Where a task fails, the others hear by what, and the error of Spark is raised that has its traceback,
    after as many attempts of the stage as Spark is told to make (spark.stage.maxConsecutiveAttempts).
    HorovodInternalError: there is no Spark session. ValueError: a wrong argument.
    """
    unknown = set(others) - _IGNORED
    if unknown:
        raise TypeError(f"run() got an unexpected argument {sorted(unknown)[0]!r}")
    context = SparkContext._active_spark_context
    if context is None:
        raise HorovodInternalError("there is no Spark session: SparkSession.builder.getOrCreate() makes one", "FAILED_PRECONDITION")
    size = context.defaultParallelism if num_proc is None else num_proc
    if size < 1:
        raise InvalidArgumentError(f"num_proc is {size}: expected at least 1", "INVALID_ARGUMENT")
    with launch.Coordinator(context.getConf().get("spark.driver.host") or "127.0.0.1") as coordinator:
        timeout = {} if start_timeout is None else {"join_timeout_s": start_timeout}
        made = coordinator.job(job or launch.job_name("spark"), size=size, **timeout)
        task = _task_of(made, (fn, tuple(args), dict(kwargs or {})), dict(env or {}))
        found: List[Tuple[int, Any]] = context.parallelize(range(size), size).barrier().mapPartitions(task).collect()
    return [value for _, value in sorted(found, key=lambda one: one[0])]


def _task_of(job: launch.Job, call: Tuple[Callable, Tuple, Dict[str, Any]], variables: Dict[str, str]) -> Callable:
    def task(_partition: Iterator) -> Iterator[Tuple[int, Any]]:
        context = BarrierTaskContext.get()
        # All are there, or Spark says why not. Of an attempt that has failed somebody may still be about to leave: this one has a name
        # of its own.
        attempt = context.allGather(secrets.token_hex(4))[0]
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        hint = context.partitionId()
        fn, args, kwargs = call
        try:
            with job.named(f"{job.name[:100]}.{attempt}").member(hint):
                value = fn(*args, **kwargs)
                rank = _basics.rank() if _basics.is_initialized() else hint
        finally:
            for name, value_before in before.items():
                os.environ.pop(name, None)
                if value_before is not None:
                    os.environ[name] = value_before
        yield rank, value

    return task
