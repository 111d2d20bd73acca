"""coordd on Spark, with the names of horovod.spark: tasks are the workers of a job.

    import coordd.spark

    results = coordd.spark.run(train, args=(10,), num_proc=4)  # by rank; train() calls hvd.init() itself
"""

import secrets
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from pyspark import BarrierTaskContext, SparkContext

from coordd import _basics, _spark_elastic, launch
from coordd._arguments import workers_if_given
from coordd.exceptions import HorovodInternalError

__all__ = ["run", "run_elastic"]

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
    _refuse_unknown("run", others)
    num_proc = workers_if_given("num_proc", num_proc)
    context = _context()
    size = num_proc or context.defaultParallelism
    with launch.Coordinator(_driver_host(context)) as coordinator:
        timeout = {} if start_timeout is None else {"join_timeout_s": start_timeout}
        made = coordinator.job(job or launch.job_name("spark"), size=size, **timeout)
        task = _task_of(made, (fn, tuple(args), dict(kwargs or {})), dict(env or {}))
        found: List[Tuple[int, Any]] = context.parallelize(range(size), size).barrier().mapPartitions(task).collect()
    return [value for _, value in sorted(found, key=lambda one: one[0])]


def run_elastic(fn: Callable, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None, num_proc: Optional[int] = None,
                min_num_proc: Optional[int] = None, max_num_proc: Optional[int] = None, start_timeout: Optional[float] = None,
                elastic_timeout: float = 600.0, reset_limit: Optional[int] = None, env: Optional[Mapping[str, str]] = None, *,
                job: Optional[str] = None, settling_window_s: float = 5.0, **others: Any) -> List[Any]:
    """Calls fn(*args, **kwargs) in tasks of the active Spark session, and goes on without those that are lost while `min_num_proc` are
    left; returns by rank what those have returned who came to the end. `fn` calls init() itself, and commits (coordd.elastic,
    coordd.torch.elastic). Each worker is a Spark job of one task: Spark starts it where there is room, again where it is lost, and it joins
    at the others' next commit.

    num_proc:          as many as the session runs tasks in parallel by default.
    min_num_proc:      without so many the job waits; num_proc by default. min_np, too.
    max_num_proc:      at most so many; num_proc by default. max_np, too.
    start_timeout:     seconds until enough have joined; COORDD_JOIN_TIMEOUT's default otherwise.
    elastic_timeout:   seconds for which the job waits for min_num_proc, after a loss, too.
    reset_limit:       after so many lost workers one more is the end; no limit by default. What Spark tries again by itself
                       (spark.task.maxFailures) does not count.
    env, job:          as run() has them.
    settling_window_s: the job begins when no further worker has come for so long, and min_num_proc are there.
    Horovod's other arguments mean nothing here, as for run().

    The error of Spark of the first worker that failed is raised where nobody is left who has the state of the program.
    HorovodInternalError: there is no Spark session. ValueError: a wrong argument.
    """
    num_proc = workers_if_given("num_proc", num_proc)
    min_num_proc = workers_if_given("min_np", others.pop("min_np", None)) or workers_if_given("min_num_proc", min_num_proc)
    max_num_proc = workers_if_given("max_np", others.pop("max_np", None)) or workers_if_given("max_num_proc", max_num_proc)
    _refuse_unknown("run_elastic", others)
    context = _context()
    wanted = num_proc or context.defaultParallelism
    size, least = max_num_proc or wanted, min_num_proc or wanted
    arguments = ["--reform-timeout", f"{elastic_timeout:g}s"]
    with launch.Coordinator(_driver_host(context), arguments=arguments) as coordinator:
        timeout = {} if start_timeout is None else {"join_timeout_s": start_timeout}
        made = coordinator.job(job or launch.job_name("spark"), size=size, min_workers=least, settling_window_s=settling_window_s, **timeout)
        run = _spark_elastic.Run(context, coordinator, made, (fn, tuple(args), dict(kwargs or {})), env or {}, reset_limit)
        return run.results()


def _refuse_unknown(function: str, others: Mapping[str, Any]) -> None:
    unknown = set(others) - _IGNORED
    if unknown:
        raise TypeError(f"{function}() got an unexpected argument {sorted(unknown)[0]!r}")


def _context() -> SparkContext:
    context = SparkContext._active_spark_context
    if context is None:
        raise HorovodInternalError("there is no Spark session: SparkSession.builder.getOrCreate() makes one", "FAILED_PRECONDITION")
    return context


def _driver_host(context: SparkContext) -> str:
    return context.getConf().get("spark.driver.host") or "127.0.0.1"


def _task_of(job: launch.Job, call: Tuple[Callable, Tuple, Dict[str, Any]], variables: Dict[str, str]) -> Callable:
    def task(_partition: Iterator) -> Iterator[Tuple[int, Any]]:
        context = BarrierTaskContext.get()
        # All are there, or Spark says why not. Of an attempt that has failed somebody may still be about to leave: this one has a name
        # of its own.
        attempt = context.allGather(secrets.token_hex(4))[0]
        hint = context.partitionId()
        fn, args, kwargs = call
        with _spark_elastic.with_variables(variables), job.named(f"{job.name[:100]}.{attempt}").member(hint):
            value = fn(*args, **kwargs)
            rank = _basics.rank() if _basics.is_initialized() else hint
        yield rank, value

    return task
