"""The command lines that people bring with them from LSF, ddlrun, horovodrun, mpirun and Slurm: each works, or is answered with the line to
write instead. Where the real program does not exist (jsrun, ddlrun, singularity) a stand-in sets what it sets and starts the ranks here."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.launchers.launcher_case import LauncherCase, lines_of
from tests.support import processes
from tests.support.processes import program

LSF = {"LSB_JOBID": "4711", "LSB_MCPU_HOSTS": "batch1 1 a01n01 42 a01n02 42"}
RACKS = {"LSB_JOBID": "4711", "LSB_MCPU_HOSTS": "batch1 1 " + " ".join(f"n{i:03} 42" for i in range(144))}
SBATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_JOB_NUM_NODES": "2", "SLURM_NODELIST": "gpu[025-026]",
          "SLURM_JOB_NODELIST": "gpu[025-026]", "SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_PROCID": "0"}
DDL = {"DDL_HOST_LIST": "g28n14:0,2,4,6,8,10;g28n15:1,3,5,7,9,11", "DDL_OPTIONS": "-mode p:6x2x1x1 "}

# (the environment, coordrun's line, its exit status with --dry-run, texts that it says)
LINES = [
    # LSF
    (LSF, "python train.py", 0, ["# 84 workers, launcher ssh", "host a01n01: ranks 0 to 41", "host a01n02: ranks 42 to 83"]),
    (LSF, "--launcher blaunch python train.py", 0, ["blaunch a01n01"]),
    (LSF, "--accelerators 6 python train.py", 0, ["# 12 workers", "host a01n02: ranks 6 to 11"]),
    (LSF, "-r1 -g6 -a6 -c42 -bpacked:7 python train.py", 2, ["jsrun -n 2 -a 6 -g 6 -c 42 python train.py"]),
    (LSF, "--launcher jsrun python train.py", 2, ["jsrun -n 2 -a 6 -g 6 -c 42 python train.py"]),
    (LSF, "jsrun -n 2 python train.py", 2, ["the command is jsrun"]),
    # ddlrun
    ({}, "-H h1,h2 --accelerators 6 python mnist-env.py", 0, ["# 12 workers", "host h2: ranks 6 to 11"]),
    ({}, "--H cap -accelerators 4 python train.py -p data", 0, ["# 4 workers", "host cap: ranks 0 to 3"]),
    ({}, "-H h1,h2 -mode p:6x2x1x1 python train.py", 0, ["# 12 workers"]),
    ({}, "-H h1,h2,h3,h4 --mode p:1x1x2x2 python train.py", 0, ["COORDD_TOPOLOGY=aisle1/rack1 ", "COORDD_TOPOLOGY=aisle2/rack2 "]),
    ({}, "-H h1,h2,h3 --mode p:6x2x1x1 python train.py", 2, ["6x2x1x1 (accelerators x nodes x racks x aisles) and 3 hosts"]),
    (RACKS, "--nodes 18 --racks 4 --aisles 2 python train.py", 2, ["expected --accelerators N"]),
    (RACKS, "--accelerators 6 --nodes 18 --racks 4 --aisles 2 python train.py", 0,
     ["# 864 workers", "host n143: ranks 858 to 863", "COORDD_TOPOLOGY=aisle2/rack4"]),
    (DDL, "python train.py", 0, ["# 12 workers, launcher ssh", "host g28n14: ranks 0 to 5", "host g28n15: ranks 6 to 11"]),
    ({}, "--mpiarg -pami_noib --accelerators 4 -m b ./train.sh", 2, ["leave it out"]),
    ({}, "-H h1,h2 --accelerators 2 --tcp python train.py", 2, ["-x UCX_TLS=tcp,self"]),
    ({}, "-np 2 ddlrun -H h1,h2 python train.py", 2, ["the command is ddlrun"]),
    ({}, "-np 2 bede-ddlrun python train.py", 2, ["the command is bede-ddlrun"]),
    ({}, "--launcher ddlrun python train.py", 2, ["coordrun -H h1,h2 --accelerators 6 python train.py"]),
    # horovodrun
    ({}, "-np 16 -H server1:4,server2:4,server3:4,server4:4 python train.py", 0, ["# 16 workers", "host server4: ranks 12 to 15"]),
    ({}, "-np 4 -H localhost:4 python train.py", 0, ["ranks 0 to 3 on this machine"]),
    ({}, "-cb", 2, ["expected coordctl check-build"]),
    ({}, "--check-build", 2, ["expected coordctl check-build"]),
    # mpirun
    ({}, "-np 16 -H server1:4,server2:12 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -mca pml ob1 python train.py", 2,
     ["--launcher mpirun --launcher-arg=ARGUMENT"]),
    # Slurm
    (SBATCH, "python train.py", 0, ["# 8 workers, launcher srun", "srun --ntasks=8"]),
    (SBATCH, "--accelerators 2 python train.py", 0, ["# 4 workers, launcher srun", "--ntasks-per-node=2"]),
    (SBATCH, "srun -n 8 python train.py", 2, ["the command is srun"]),
]

# What the real ones set, and no more; each starts its ranks on this machine.
JSRUN = """#!/bin/sh
# jsrun -n/-r resource sets, -a tasks of each: N ranks with JSM's and Spectrum MPI's variables.
sets=1 tasks=1
while :; do
  case $1 in
    -n) sets=$2; shift 2 ;;
    -a) tasks=$2; shift 2 ;;
    -[grc]) shift 2 ;;
    -a?*) tasks=${1#-a}; shift ;;
    -[grcbd]?*) shift ;;
    *) break ;;
  esac
done
size=$((sets * tasks)) rank=0 pids=
while [ $rank -lt $size ]; do
  env JSM_NAMESPACE_RANK=$rank JSM_NAMESPACE_SIZE=$size JSM_NAMESPACE_LOCAL_RANK=$rank JSM_NAMESPACE_LOCAL_SIZE=$size PMIX_NAMESPACE=1 \\
    PMIX_RANK=$rank OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$size OMPI_COMM_WORLD_LOCAL_RANK=$rank \\
    OMPI_COMM_WORLD_LOCAL_SIZE=$size "$@" &
  pids="$pids $!" rank=$((rank + 1))
done
status=0
for pid in $pids; do wait $pid || status=$?; done
exit $status
"""

DDLRUN = """#!/bin/sh
# ddlrun -H h1,h2 --racks R: a rank on each host, by Open MPI.
hosts=$(hostname) racks=1
while :; do
  case $1 in
    -H) hosts=$2; shift 2 ;;
    --racks) racks=$2; shift 2 ;;
    *) break ;;
  esac
done
size=$(echo $hosts | tr , '\\n' | wc -l) rank=0 pids= list=
for host in $(echo $hosts | tr , ' '); do list="$list${list:+;}$host:$rank"; rank=$((rank + 1)); done
rank=0
for host in $(echo $hosts | tr , ' '); do
  env OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$size OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 \\
    PMIX_NAMESPACE=$$ PMIX_RANK=$rank DDL_HOST_PORT=2200 DDL_HOST_LIST="$list" DDL_OPTIONS="-mode p:1x$((size / racks))x${racks}x1 " \\
    COORDD_NODE_ID=$host COORDD_TRANSPORT=tcp "$@" &
  pids="$pids $!" rank=$((rank + 1))
done
status=0
for pid in $pids; do wait $pid || status=$?; done
exit $status
"""

# singularity exec --nv IMAGE COMMAND: variables go through.
SINGULARITY = """#!/bin/sh
[ "$1 $2" = "exec --nv" ] || exit 64
shift 3
exec "$@"
"""


class Lines(LauncherCase):
    def setUp(self):
        super().setUp()
        folder = self.file("bin")
        os.mkdir(folder)
        for name, text in (("jsrun", JSRUN), ("ddlrun", DDLRUN), ("singularity", SINGULARITY), ("bede-ddlrun", '#!/bin/sh\nexec ddlrun "$@"\n')):
            with open(os.path.join(folder, name), "w", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o755)) as stub:
                stub.write(text)
        self.environment.update(PATH=f"{folder}:{self.environment['PATH']}", HOME=self.folder, COORDD_JOIN_TIMEOUT="50")
        os.mkdir(self.file("xdg"), 0o700)

    def test_coordrun_understands_or_answers(self):
        own = dict(self.environment)
        for environment, line, status, texts in LINES:
            with self.subTest(line=line, environment=environment):
                self.environment = {**own, **environment}
                ended, said = self.coordrun("--dry-run", *line.split())
                self.assertEqual(ended, status, said)
                for text in texts:
                    self.assertIn(text, said)

    def ranks_of(self, line, environment, size):
        """The launcher's own line, with ranks that meet without being told where; what they print."""
        ended, said = self.run_command(*line.split(), program("coordd-worker"), "--json", "allreduce", "--iterations", "2", "--elements", "4",
                                       environment={**self.environment, "XDG_RUNTIME_DIR": self.file("xdg"), **environment})
        self.assertEqual(ended, 0, said)
        self.assertEqual(said.count(f'"size":{size},'), size, said)
        self.assert_nothing_left()
        return said

    def test_the_launchers_lines_work_without_coordrun(self):
        self.ranks_of("jsrun -bpacked:7 -g6 -a2 -c42 -r1", LSF, 2)
        self.ranks_of("jsrun -n 1 -a 2 -c 42 -g 6 -r 1 singularity exec --nv image.sif", LSF, 2)
        self.ranks_of("ddlrun -H h1,h2", {}, 2)
        self.ranks_of("bede-ddlrun -H h1,h2", SBATCH, 2)

    def test_ddlruns_racks_are_the_ranks_topology(self):
        ended, said = self.run_command("ddlrun", "-H", "h1,h2,h3,h4", "--racks", "2", program("coordctl"), "whoami",
                                       environment=self.environment)
        self.assertEqual(ended, 0, said)
        self.assertEqual([said.count(f"topology     rack{number}") for number in (1, 2)], [2, 2], said)
        # Four nodes of two racks are a job, whose ranks all have as many labels.
        self.ranks_of("ddlrun -H h1,h2,h3,h4 --racks 2", {}, 4)

    def test_racks_reach_the_workers_of_coordrun(self):
        blaunch = self.file("bin/blaunch")
        with open(blaunch, "w", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o755)) as stub:
            stub.write('#!/bin/sh\nshift\nexec "$@"\n')
        ended, said = self.coordrun("--launcher", "blaunch", "--skip-checks", "-H", "h1,h2", "--accelerators", "2", "--racks", "2", "--",
                                    "sh", "-c", "echo $COORDD_RANK of $COORDD_SIZE in $COORDD_TOPOLOGY")
        self.assertEqual(ended, 0, said)
        self.assertEqual([lines_of(said, rank) for rank in range(4)],
                         [["0 of 4 in rack1"], ["1 of 4 in rack1"], ["2 of 4 in rack2"], ["3 of 4 in rack2"]], said)
        self.assert_clean()

    def test_a_batch_script_is_no_rank(self):
        ended, said = self.run_command(program("coordctl"), "whoami", environment={**self.environment, **SBATCH})
        self.assertEqual(ended, 0, said)
        self.assertIn("start the program with srun or coordrun", said)


if __name__ == "__main__":
    processes.main()
