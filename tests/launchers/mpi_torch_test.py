"""torchrun's variables under coordrun --launcher mpirun, with real Open MPI and MPICH; coordrun inside of an mpirun."""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.launchers.launcher_case import MpichCase, OpenMpiCase, lines_of
from tests.support import processes
from tests.support.processes import program

# What torch.distributed reads, and mpirun's own rank.
TORCH = ('echo "torch $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} '
         '$MASTER_ADDR:$MASTER_PORT"; echo "threads=$OMP_NUM_THREADS"')
SMALL_RUN = ("allreduce", "--iterations", "5", "--tensors", "3", "--elements", "1000")

# Rank 0 listens as torch's store does; rank 1 tries to take the port, and then meets rank 0 there.
LISTEN = """
import os, socket, time
rank, place = os.environ["RANK"], (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == "0":
    store = socket.socket()
    store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    store.bind(("", place[1]))
    store.listen()
    store.settimeout(30)
    print(store.accept()[0].recv(99).decode())
else:
    try:
        socket.socket().bind(("", place[1]))
    except OSError:
        print("kept from rank 1")
    for attempt in range(600):
        try:
            socket.create_connection(place).send(b"rank 1 was here")
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
"""


class TorchCases:
    """The same for both libraries."""

    def check_torch(self, text, count):
        """Every rank has torchrun's variables, with mpirun's numbers, and one place for the store."""
        said = [self.torch_line(text, rank) for rank in range(count)]
        self.assertEqual([line[:6] for line in said],
                         [[str(rank), str(count), str(rank), str(count), "0", str(rank)] for rank in range(count)], text)
        self.assertEqual(len({line[6] for line in said}), 1, text)
        self.assertRegex(said[0][6], r"^[0-9a-f.:]+:[1-9]\d+$")

    def torch_line(self, text, rank):
        lines = [line for line in lines_of(text, rank) if line.startswith("torch ")]
        self.assertEqual(len(lines), 1, text)
        return lines[0].split()[1:]

    def holding(self, program_text):
        """A coordrun for the ranks that does something else before; $RANK_HERE is mpirun's rank."""
        path = self.file("coordrun")
        with open(path, "w", encoding="utf-8") as script:
            script.write(f'#!/bin/sh\nRANK_HERE=${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}\n{program_text}\n'
                         f'exec {program("coordrun")} "$@"\n')
            os.chmod(script.fileno(), 0o755)
        return ("--remote-coordrun", path)

    def test_each_rank_has_torchs_variables(self):
        status, text = self.coordrun("-np", "3", "--launcher", "mpirun", "--", "sh", "-c", TORCH)
        self.assertEqual(status, 0, text)
        self.check_torch(text, 3)
        self.assertNotIn("threads=\n", text)
        self.assert_clean()

    def test_hosts_that_are_named_have_them_too(self):
        status, text = self.coordrun("-H", "localhost:2", "--launcher", "mpirun", "--no-tls", "--listen", "127.0.0.1:0",
                                     "--", "sh", "-c", TORCH)
        self.assertEqual(status, 0, text)
        self.check_torch(text, 2)

    def test_the_port_is_free_for_torchs_store_and_for_nobody_else(self):
        status, text = self.coordrun("-np", "2", "--launcher", "mpirun", "--port-range", "23000-23400", "--",
                                     sys.executable, "-c", LISTEN)
        self.assertEqual(status, 0, text)
        self.assertIn("rank 1 was here", text)
        self.assertIn("kept from rank 1", text)

    def test_what_the_user_says_wins(self):
        status, text = self.coordrun("-np", "2", "--launcher", "mpirun", "-x", "MASTER_PORT=29999", "-x",
                                     "OMP_NUM_THREADS=7", "--", "sh", "-c", "echo $RANK $MASTER_PORT $OMP_NUM_THREADS")
        self.assertEqual(status, 0, text)
        self.assertEqual([lines_of(text, rank)[-1] for rank in range(2)], ["0 29999 7", "1 29999 7"], text)

    def test_no_torch_env_leaves_them_out(self):
        status, text = self.coordrun("-np", "2", "--launcher", "mpirun", "--no-torch-env", "--", "sh", "-c",
                                     "echo none=$RANK$WORLD_SIZE$MASTER_PORT$OMP_NUM_THREADS$COORDD_TORCH_ENV.")
        self.assertEqual(status, 0, text)
        self.assertEqual([lines_of(text, rank) for rank in range(2)], [["none=."], ["none=."]], text)

    def test_ranks_are_those_that_coordd_gives(self):
        # mpirun has dealt them round two nodes; coordd keeps the ranks of a node together.
        status, text = self.coordrun("-np", "4", "--launcher", "mpirun",
                                     *self.holding("export COORDD_NODE_ID=node$((RANK_HERE % 2))"), "--", "sh", "-c",
                                     f'echo "place $RANK $LOCAL_RANK $GROUP_RANK"; exec {program("coordd-worker")} '
                                     + " ".join(SMALL_RUN))
        self.assertEqual(status, 0, text)
        said = [[line for line in lines_of(text, rank) if line.startswith("place")] for rank in range(4)]
        self.assertEqual(said, [["place 0 0 0"], ["place 2 0 1"], ["place 1 1 0"], ["place 3 1 1"]], text)
        given = [json.loads(line)["rank"] for rank in range(4) for line in lines_of(text, rank) if '"wrong"' in line]
        self.assertEqual(given, [0, 2, 1, 3], text)
        self.assertNotIn("disagree", text)

    def test_a_rank_that_never_comes_is_named(self):
        for held, sentence in (("1", "rank 1 of mpirun has not come within 1 s (--start-timeout): expected all ranks"),
                               ("0", "mpirun's rank 1 has not heard which rank each will be within 1 s")):
            status, text = self.coordrun("-np", "2", "--launcher", "mpirun", "--start-timeout", "1",
                                         *self.holding(f'[ "$RANK_HERE" = {held} ] && exec sleep 50'), "--", "true")
            self.assertNotEqual(status, 0, text)
            self.assertIn(sentence, text)
        self.assert_clean()

    def test_coordrun_in_each_of_several_ranks_is_refused(self):
        status, text = self.run_command("mpirun", "-np", "2", program("coordrun"), "-np", "2", "--", "echo", "started",
                                        environment=self.environment)
        self.assertNotEqual(status, 0, text)
        self.assertIn("one of 2 tasks of mpi", text)
        self.assertNotIn("started", text)

    def test_coordrun_in_the_only_rank_goes_on(self):
        status, text = self.run_command("mpirun", "-np", "1", program("coordrun"), "-np", "2", "--", "echo", "started",
                                        environment=self.environment)
        self.assertEqual(status, 0, text)
        self.assertEqual(text.count("started"), 2, text)


class OpenMpiTest(TorchCases, OpenMpiCase):
    pass


class MpichTest(TorchCases, MpichCase):
    pass


if __name__ == "__main__":
    processes.main()
