"""Workers without a named coordinator: alone, as the tasks of a (recorded) Slurm step, and where it cannot work."""

import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from tests.support.processes import BUILD

WORKER = os.path.join(BUILD, "bin", "coordd-worker")
COORDCTL = os.path.join(BUILD, "bin", "coordctl")
LIMIT = 60  # s, against hangs only


def step(home, tasks, nodes, port):
    """The environments of the tasks of one Slurm step, whose nodes are simulated on this machine."""
    per_node = tasks // nodes
    base = {"PATH": os.environ["PATH"], "HOME": home, "XDG_RUNTIME_DIR": os.path.join(home, "run"),
            "SLURM_CLUSTER_NAME": "cluster1", "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_STEP_NUM_NODES": str(nodes),
            "SLURM_STEP_TASKS_PER_NODE": f"{per_node}(x{nodes})", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
            "SLURM_STEP_LAUNCHER_PORT": str(port), "COORDD_JOIN_TIMEOUT": "50"}
    return [dict(base, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank % per_node), SLURM_NODEID=str(rank // per_node),
                 COORDD_NODE_ID=f"node{rank // per_node}") for rank in range(tasks)]


def start(environment, *arguments):
    return subprocess.Popen([WORKER, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def coordd_pids(home):
    """Processes that were started with a directory below `home`."""
    pids = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                command = file.read().split(b"\0")
        except OSError:
            continue
        if any(os.fsencode(home) in argument for argument in command):
            pids.append(int(path.split("/")[2]))
    return pids


def wait_until(condition, what, seconds=LIMIT):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def nothing_is_left(home):
    wait_until(lambda: not coordd_pids(home), "coordd outlives its job")
    left = [path for path in glob.glob(os.path.join(home, "**"), recursive=True)
            + glob.glob(os.path.join(home, ".coordd", "**"), recursive=True) if os.path.isfile(path)]
    assert not left, left


def alone(home):
    environment = {"PATH": os.environ["PATH"], "HOME": home, "XDG_RUNTIME_DIR": os.path.join(home, "run")}
    for level in ("info", "debug"):
        process = start(dict(environment, COORDD_LOG_LEVEL=level), "allreduce", "--iterations", "2")
        out, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, err
        assert json.loads(out)["size"] == 1, out
        assert ("127.0.0.1" in err and "a job of one worker" in err) == (level == "debug"), err
    nothing_is_left(home)


def whole_step(home, nodes, port, **extra):
    processes = [start(dict(environment, **extra), "allreduce", "--iterations", "2")
                 for environment in reversed(step(home, 4, nodes, port))]  # rank 0 comes last
    results = [(process, *process.communicate(timeout=LIMIT)) for process in processes]
    places = []
    for process, out, err in results:
        assert process.returncode == 0, err
        places.append(json.loads(out))
    assert sorted(place["rank"] for place in places) == [0, 1, 2, 3], places
    assert all(place["local_size"] == 4 // nodes and place["wrong"] == 0 for place in places), places
    nothing_is_left(home)
    return places


def metrics_are_routed(home):
    """With nodes of its own each, workers announce the address that coordd sees, on a port of the range."""
    places = whole_step(home, 2, 40002, COORDD_METRICS="auto", COORDD_PORT_RANGE="23100-23180")
    for place in places:
        host, _, port = place["metrics"].rpartition(":")
        assert 23100 <= int(port) <= 23180, place
        assert host, place


def rank_zero_is_killed(home):
    processes = [start(environment, "allreduce", "--iterations", "0") for environment in step(home, 4, 1, 40003)]
    pattern = os.path.join(home, "run", "coordd", "run", "4711.0-*", "coordd.json")
    wait_until(lambda: glob.glob(pattern), "no rendezvous file")
    with open(glob.glob(pattern)[0], encoding="utf-8") as file:
        record = json.load(file)
    assert os.stat(glob.glob(pattern)[0]).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(record["token_file"])).st_mode & 0o777 == 0o700

    def reduce_together():
        """What is planned all have submitted, so all know that they are members."""
        state = subprocess.run([COORDCTL, "status", "--json", "--coordinator", record["addresses"][0],
                                "--tls-ca", record["tls"]["ca"], "--tls-cert", record["tls"]["cert"],
                                "--tls-key", record["tls"]["key"], "--token-file", record["token_file"]], capture_output=True, text=True, check=False)
        return state.returncode == 0 and any(job["batches_planned"] > 0 for job in json.loads(state.stdout)["jobs"])

    wait_until(reduce_together, "the job has not formed")
    start_time = time.monotonic()
    processes[0].send_signal(signal.SIGKILL)
    for process in processes[1:]:
        out, err = process.communicate(timeout=LIMIT)
        assert "rank 0" in json.loads(out)["error"], (out, err)
    processes[0].communicate()
    nothing_is_left(home)
    assert time.monotonic() - start_time < 5, "kill -9 of rank 0 leaves something for longer than 5 s"


def sentences(home):
    """Where it cannot work: one sentence, at once."""
    base = {"PATH": os.environ["PATH"], "HOME": home, "XDG_RUNTIME_DIR": os.path.join(home, "run")}
    batch = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_NUM_NODES": "2"}
    task = step(home, 4, 2, 40004)[1]
    cases = [(dict(base, **batch), "the batch script of Slurm job 4711, not one of its 4 tasks"),
             (dict(base, SLURM_JOB_ID="4711", SLURM_NTASKS="8"), "a shell in Slurm job 4711"),
             (dict(base, COORDD_SIZE="4"), "COORDD_ADDR"),
             (dict(base, PMI_RANK="1", PMI_SIZE="4"), "COORDD_RENDEZVOUS_FILE"),
             ({**task, "COORDD_JOIN_TIMEOUT": "0.3"}, "shared between the nodes"),
             ({key: value for key, value in task.items() if key != "HOME"}, "home directory")]
    processes = [(start(environment, "allreduce", "--iterations", "1"), text) for environment, text in cases]
    for process, text in processes:
        _, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 3 and text in err, (process.returncode, text, err)
    nothing_is_left(home)


def jsrun_task(home, job, rank, with_mpi):
    """The environment of a task of jsrun in an LSF job, whose PMIx namespaces count from 1 in each job; `with_mpi`: with
    Spectrum MPI's variables besides."""
    environment = {"PATH": os.environ["PATH"], "HOME": home, "XDG_RUNTIME_DIR": os.path.join(home, "run"),
                   "LSB_JOBID": str(job), "JSM_NAMESPACE_RANK": str(rank), "JSM_NAMESPACE_SIZE": "2",
                   "JSM_NAMESPACE_LOCAL_RANK": str(rank), "JSM_NAMESPACE_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "1",
                   "PMIX_RANK": str(rank), "COORDD_JOIN_TIMEOUT": "50"}
    mpi = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
           "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    return {**environment, **(mpi if with_mpi else {})}


def two_jobs_never_meet(home):
    """While job 6001 runs, a rank 1 of job 6002 that comes before its rank 0 waits for that one."""
    for with_mpi in (False, True):
        first = [start(jsrun_task(home, 6001, rank, with_mpi), "allreduce", "--iterations", "0") for rank in (0, 1)]
        pattern = os.path.join(home, "run", "coordd", "run", "*", "coordd.json")
        wait_until(lambda pattern=pattern: glob.glob(pattern), "no rendezvous file of job 6001")
        early = start(jsrun_task(home, 6002, 1, with_mpi), "allreduce", "--iterations", "2")
        late = start(jsrun_task(home, 6002, 0, with_mpi), "allreduce", "--iterations", "2")
        for process in (early, late):
            out, err = process.communicate(timeout=LIMIT)
            assert process.returncode == 0 and json.loads(out)["size"] == 2, err
        assert all(process.poll() is None for process in first), "job 6001 has ended"
        for process in first:
            process.send_signal(signal.SIGTERM)
        for process in first:
            process.communicate(timeout=LIMIT)
        # Rank 0 of one and rank 1 of another: nobody meets.
        alone_ranks = [start(dict(jsrun_task(home, job, rank, with_mpi), COORDD_JOIN_TIMEOUT="2"), "allreduce", "--iterations",
                             "1") for job, rank in ((5001, 0), (5002, 1))]
        for process in alone_ranks:
            _, err = process.communicate(timeout=LIMIT)
            assert process.returncode == 3, (process.returncode, err)
        nothing_is_left(home)


def a_job_that_is_hidden_from_some(home):
    """mpirun through ssh: only its own host's ranks see the scheduler's job."""
    base = {"PATH": os.environ["PATH"], "HOME": home, "XDG_RUNTIME_DIR": os.path.join(home, "run"), "COORDD_JOIN_TIMEOUT": "50",
            "OMPI_MCA_orte_hnp_uri": "7.0;tcp://127.0.0.1:35101", "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    for seeing in (0, 1):
        processes = [start(dict(base, OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_LOCAL_RANK=str(rank),
                                **({"LSB_JOBID": "4711"} if rank == seeing else {})), "allreduce", "--iterations", "1")
                     for rank in (1, 0)]
        for process in processes:
            out, err = process.communicate(timeout=LIMIT)
            assert process.returncode == 0 and json.loads(out)["size"] == 2, err
        nothing_is_left(home)


def named_file(home):
    """COORDD_RENDEZVOUS_FILE serves launchers that give their processes nothing in common."""
    environments = [{"PATH": os.environ["PATH"], "HOME": home, "XDG_RUNTIME_DIR": os.path.join(home, "run"),
                     "PMI_RANK": str(rank), "PMI_SIZE": "2", "COORDD_JOIN_TIMEOUT": "50",
                     "COORDD_RENDEZVOUS_FILE": os.path.join(home, "here.json")} for rank in (1, 0)]
    processes = [start(environment, "allreduce", "--iterations", "1") for environment in environments]
    for process in processes:
        out, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 0 and json.loads(out)["size"] == 2, err
    nothing_is_left(home)


def main():
    with tempfile.TemporaryDirectory(prefix="coordd-auto-") as home:
        os.mkdir(os.path.join(home, "run"), 0o700)
        for check in (alone, lambda home: whole_step(home, 1, 40000), lambda home: whole_step(home, 2, 40001), metrics_are_routed,
                      rank_zero_is_killed, two_jobs_never_meet, a_job_that_is_hidden_from_some, sentences, named_file):
            check(home)


if __name__ == "__main__":
    sys.exit(main())
