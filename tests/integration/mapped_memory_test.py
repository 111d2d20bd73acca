"""Collectives on memory that the ranks of a node have mapped (COORDD_TRANSPORT=mapped), between real processes."""

import json
import signal

from tests.support import processes
from tests.support.processes import PATIENCE_S, ScriptedWorker, program
from tests.support.scripted_jobs import allreduce, kill_in_an_allreduce, leave


class MappedMemoryTest(processes.TestCase):
    def test_every_operation_dtype_and_op(self):
        status, text = self.run_command(program("coordrun"), "-np", "3", "--", program("coordd-worker"), "selftest",
                                        environment=processes.clean_environment(COORDD_TRANSPORT="mapped"), seconds=170)
        self.assertEqual(status, 0, text)
        self.assert_nothing_left()

    def test_where_a_rank_has_no_room_for_it_all_send_messages_or_say_who(self):
        # What rank 1 may make, in the shell's blocks of 512 or 1024 bytes; whether it fails, and who is told of messages.
        for transport, blocks, fails, falls_back in (("auto", 1 << 20, False, True), ("mapped", 1 << 20, False, False),
                                                     ("mapped", 1 << 15, True, False)):
            limited = f'[ "$COORDD_LOCAL_RANK" != 1 ] || ulimit -f {blocks}; exec {program("coordd-worker")} selftest'
            status, text = self.run_command(program("coordrun"), "-np", "3", "--", "/bin/sh", "-c", limited,
                                            environment=processes.clean_environment(COORDD_TRANSPORT=transport), seconds=170)
            self.assertEqual(status != 0, fails, text)
            if fails or falls_back:
                self.assertIn("rank 1: shared memory of", text)
                self.assertIn("ulimit -f", text)
            said = [line for line in text.splitlines() if "exchange messages through shared memory" in line]
            self.assertEqual(len(said), int(falls_back), text)
        self.assert_nothing_left()

    def test_a_rank_that_is_killed_at_any_instant_hangs_nobody_and_leaves_nothing(self):
        daemon = self.coordd()
        # Before it takes part, while the others wait for it, and somewhere in between.
        for number, instant_s in enumerate((None, 0.0, 0.003, 0.02)):
            workers = self.workers(daemon, 3, job=f"kill-{number}", COORDD_TRANSPORT="mapped")
            kill_in_an_allreduce(self, workers, 1, instant_s)
        daemon.end()
        self.assert_nothing_left()

    def test_a_rank_that_is_killed_while_others_are_in_calls_of_a_comm(self):
        daemon = self.coordd("--settling-window", "10m")
        # Odd instants: large tensors.
        cases = [("die", "mapped", "end", 0), ("die", "mapped", "end", 3001), ("die", "mapped", "raise", 700),
                 ("die", "mapped", "raise", 20001), ("die", "shm", "end", 3001), ("die", "shm", "raise", 700)]
        # While they map each other's files.
        cases += [("die-registering", "mapped", "raise", instant_us) for instant_us in (0, 900, 5000, 20000)]
        cases += [("die-registering", "shm", "raise", 900)]
        for number, (how, transport, on_failure, instant_us) in enumerate(cases):
            environment = processes.clean_environment(
                COORDD_ADDR=daemon.listen, COORDD_JOB_ID=f"comm-{number}", COORDD_LAUNCHER="none", COORDD_TRANSPORT=transport,
                COORDD_ON_FAILURE=on_failure, COORDD_MIN_WORKERS=2 if on_failure == "raise" else 3, COORDD_MAX_WORKERS=3)
            ranks = [self.start(processes.Process([program("comm_test"), how, str(instant_us)], environment))
                     for _ in range(3)]
            statuses = sorted(rank.wait() for rank in ranks)
            self.assertEqual(statuses, [-signal.SIGKILL, 0, 0], [rank.text() for rank in ranks])
        daemon.end()
        self.assert_nothing_left()


class TcpNodesTest(processes.TestCase):
    """The same two nodes, without UCX."""

    def test_every_operation_dtype_and_op_in_plain_and_encrypted(self):
        on_nodes = f'export COORDD_NODE_ID=node$((COORDD_LOCAL_RANK / 2)); exec {program("coordd-worker")} selftest'
        for encryption in ("off", "on"):
            environment = processes.clean_environment(COORDD_TRANSPORT="tcp", COORDD_DATA_ENCRYPTION=encryption,
                                                      COORDD_UCX_LIBRARY="/nowhere/libucp.so.0")
            status, text = self.run_command(program("coordrun"), "-np", "4", "--", "/bin/sh", "-c", on_nodes,
                                            environment=environment, seconds=170)
            self.assertEqual(status, 0, text)
            self.assert_nothing_left()


class NodesTest(processes.TestCase):
    """Two nodes of two ranks, which by their COORDD_NODE_ID share no memory: allreduces between them are hierarchical."""

    def workers_on_nodes(self, daemon, job, **variables):
        started = [self.start(ScriptedWorker(daemon.listen, COORDD_JOB_ID=job, COORDD_MIN_WORKERS=4, COORDD_MAX_WORKERS=4,
                                             COORDD_JOIN_TIMEOUT=PATIENCE_S, COORDD_NODE_ID=f"node{number // 2}", **variables))
                   for number in range(4)]
        return sorted((worker.joined() for worker in started), key=lambda worker: worker.rank)

    def test_every_operation_dtype_and_op_checked(self):
        # The smallest ones too.
        on_nodes = f'export COORDD_NODE_ID=node$((COORDD_LOCAL_RANK / 2)); exec {program("coordd-worker")} selftest'
        environment = processes.clean_environment(COORDD_HOST_ALGORITHM="hierarchical", COORDD_CHECK_RESULTS="1e-12")
        status, text = self.run_command(program("coordrun"), "-np", "4", "--", "/bin/sh", "-c", on_nodes,
                                        environment=environment, seconds=170)
        self.assertEqual(status, 0, text)
        self.assert_nothing_left()

    def edges(self, daemon):
        """Of each rank, as coordd has been told them."""
        _, text = self.run_command(program("coordctl"), "status", "--json", "--coordinator", daemon.listen)
        workers = sorted(json.loads(text)["jobs"][0]["workers"], key=lambda worker: worker["rank"])
        return [worker["host_edges"] for worker in workers]

    def test_says_over_what_each_rank_reaches_the_others(self):
        cases = [({}, "tcp"), ({"COORDD_DATA_ENCRYPTION": "on"}, "tcp encrypted"), ({"COORDD_TCP_CONNECTIONS": "4"}, "tcp x4")]
        if processes.has_ucx():
            cases.append(({"COORDD_TRANSPORT": "ucx"}, "ucx"))
        for number, (variables, over) in enumerate(cases):
            daemon = self.coordd("--heartbeat-interval", "200ms")
            workers = self.workers_on_nodes(daemon, f"edges-{number}", COORDD_HOST_ALGORITHM="flat", **variables)
            self.assertTrue(processes.wait_for(lambda: all(self.edges(daemon)), PATIENCE_S), self.edges(daemon))
            # Nobody has spoken to another node yet.
            self.assertEqual([edges["within_node"] for edges in self.edges(daemon)], ["mapped"] * 4)
            allreduce(self, workers, "small", 4, "ok 4 4")
            self.assertTrue(processes.wait_for(lambda: all(edges["between_nodes"] for edges in self.edges(daemon)), PATIENCE_S))
            for rank, edges in enumerate(self.edges(daemon)):
                self.assertEqual(edges["within_node"], "mapped")
                self.assertEqual([group["over"] for group in edges["between_nodes"]], [over])
                of_the_other_node = {2, 3} if rank < 2 else {0, 1}
                self.assertLessEqual(set(edges["between_nodes"][0]["first_ranks"]), of_the_other_node)
            _, text = self.run_command(program("coordctl"), "status", "--coordinator", daemon.listen)
            self.assertIn(f"  edges in nodes: mapped\n  edges between nodes: {over}\n", text)
            self.assertIn(f" mapped, {over} ", text)
            leave(self, workers)
            daemon.end()
        self.assert_nothing_left()

    def test_a_node_that_has_no_room_for_it(self):
        on_nodes = (f'export COORDD_NODE_ID=node$((COORDD_LOCAL_RANK / 2)); [ "$COORDD_LOCAL_RANK" != 3 ] || ulimit -f {1 << 20}; '
                    f'exec {program("coordd-worker")} selftest')
        status, text = self.run_command(program("coordrun"), "-np", "4", "--", "/bin/sh", "-c", on_nodes,
                                        environment=processes.clean_environment(), seconds=170)
        self.assertEqual(status, 0, text)
        self.assertIn("exchange messages through shared memory", text)
        self.assert_nothing_left()

    def test_a_rank_that_is_killed_at_any_instant_hangs_nobody_and_leaves_nothing(self):
        daemon = self.coordd()
        for number, instant_s in enumerate((None, 0.0, 0.003, 0.02, 0.05)):
            workers = self.workers_on_nodes(daemon, f"kill-{number}", COORDD_HOST_ALGORITHM=("auto", "flat")[number == 2])
            kill_in_an_allreduce(self, workers, 1, instant_s)
        daemon.end()
        self.assert_nothing_left()


if __name__ == "__main__":
    processes.main()
