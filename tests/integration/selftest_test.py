"""Every operation, dtype and op across real processes."""

from tests.support import processes
from tests.support.processes import program


class SelftestTest(processes.TestCase):
    def run_selftest(self, count, **variables):
        return self.run_command(program("coordrun"), "-np", str(count), "--", program("coordd-worker"), "selftest",
                                environment=processes.clean_environment(**variables), seconds=170)

    def test_four_processes_of_one_node(self):
        status, text = self.run_selftest(4)
        self.assertEqual(status, 0, text)
        self.assert_nothing_left()

    def test_results_that_are_checked(self):
        status, text = self.run_selftest(3, COORDD_CHECK_RESULTS="1e-12")
        self.assertEqual(status, 0, text)
        self.assert_nothing_left()

    def test_one_process(self):
        status, text = self.run_selftest(1)
        self.assertEqual(status, 0, text)

    def run_on_nodes(self, **variables):
        """Each rank on a node of its own."""
        on_nodes = f'export COORDD_NODE_ID=node$COORDD_LOCAL_RANK; exec {program("coordd-worker")} selftest'
        return self.run_command(program("coordrun"), "-np", "2", "--", "/bin/sh", "-c", on_nodes,
                                environment=processes.clean_environment(**variables), seconds=170)

    def test_nodes_that_share_no_memory(self):
        status, text = self.run_on_nodes(COORDD_TRANSPORT="tcp")
        self.assertEqual(status, 0, text)
        self.assert_nothing_left()

    def test_nodes_whose_messages_are_encrypted(self):
        status, text = self.run_on_nodes(COORDD_TRANSPORT="tcp", COORDD_DATA_ENCRYPTION="on")
        self.assertEqual(status, 0, text)
        self.assert_nothing_left()

    def test_nodes_with_several_connections(self):
        for encryption in ("off", "on"):
            status, text = self.run_on_nodes(COORDD_TRANSPORT="tcp", COORDD_DATA_ENCRYPTION=encryption, COORDD_TCP_CONNECTIONS="4")
            self.assertEqual(status, 0, text)
            self.assert_nothing_left()

    def test_nodes_that_do_not_have_as_many_connections(self):
        on_nodes = (f'export COORDD_NODE_ID=node$COORDD_LOCAL_RANK COORDD_TCP_CONNECTIONS=$((COORDD_LOCAL_RANK + 2)); '
                    f'exec {program("coordd-worker")} selftest')
        status, text = self.run_command(program("coordrun"), "-np", "2", "--", "/bin/sh", "-c", on_nodes,
                                        environment=processes.clean_environment(COORDD_TRANSPORT="tcp"), seconds=170)
        self.assertNotEqual(status, 0, text)
        self.assertRegex(text, r"COORDD_TCP_CONNECTIONS is [23] on rank [01] and [23] on rank [01]: all ranks must choose alike")
        self.assert_nothing_left()

    def test_nodes_that_use_ucx(self):
        status, text = self.run_on_nodes(COORDD_TRANSPORT="ucx")
        if "UCX, which this build of coordd does not have" in text:
            self.assertEqual(status, 3, text)
            self.skipTest("built without UCX")
        self.assertEqual(status, 0, text)
        self.assert_nothing_left()


class LargeTensorTest(processes.TestCase):
    def test_more_than_two_gib_in_place(self):
        if processes.SANITIZED:
            self.skipTest("takes minutes under a sanitizer")
        coordd = self.coordd()
        workers = self.workers(coordd, 2)
        for worker in workers:
            worker.tell(f"large huge {(2 << 30) + 4097}")
        for worker in workers:
            self.assertEqual(worker.answer(150), "ok 3")


if __name__ == "__main__":
    processes.main()
