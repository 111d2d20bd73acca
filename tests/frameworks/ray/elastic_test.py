"""Elastic executors: actors that are lost, nodes that come and go."""

import os
import tempfile
import threading
import time
import unittest

from ray_case import PATIENCE_S, SMALL, RayCase, ray

from coordd import HorovodInternalError
from coordd.ray import RayExecutor
import functions


class Background(threading.Thread):
    """executor.run() beside the test."""

    def __init__(self, executor, *arguments):
        super().__init__(daemon=True)
        self.executor, self.arguments = executor, arguments
        self.results, self.error = None, None
        self.start()

    def run(self):
        try:
            self.results = self.executor.run(self.arguments[0], args=self.arguments[1:])
        except Exception as error:
            self.error = error

    def end(self):
        self.join(PATIENCE_S)
        if self.is_alive():
            raise AssertionError("the run has not ended")
        if self.error is not None:
            raise self.error
        return self.results


class Case(RayCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def executor(self, **arguments):
        made = RayExecutor(RayExecutor.create_settings(timeout_s=PATIENCE_S), **arguments)
        self.addCleanup(made.shutdown)
        made.start()
        return made

    def await_file(self, name, times=1):
        end = time.monotonic() + PATIENCE_S
        while self.lines(name) < times:
            self.assertLess(time.monotonic(), end, f"no {name}: {os.listdir(self.folder)}")
            time.sleep(0.02)

    def lines(self, name):
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            return 0
        with open(path) as file:
            return len(file.readlines())

    def let_it_end(self):
        open(os.path.join(self.folder, "end"), "w").close()


class Elastic(Case):
    def test_a_lost_actor_is_replaced_and_the_others_go_on(self):
        for how in ("kill", "raise"):
            with self.subTest(how):
                self.setUp()
                executor = self.executor(num_workers=3, min_workers=2)
                run = Background(executor, functions.train, 30, self.folder, 1, 10, how)
                self.await_file("size-2", 2)
                self.await_file("size-3", 5)  # two have seen it twice, and the new one once
                self.let_it_end()
                results = run.end()
                self.assertEqual(len(results), 3)
                for steps, sizes in results:
                    self.assertGreaterEqual(steps, 30)
                    self.assertEqual([size for _, size in sizes], [3, 2, 3])
                    self.assertIn(sizes[1][0], (10, 11))  # the step of the loss, or the next, if its gradient was there already
                executor.shutdown()

    def test_a_program_that_fails_everywhere_is_not_started_again_and_again(self):
        executor = self.executor(num_workers=2, min_workers=1)
        with self.assertRaisesRegex(ValueError, "always bad"):
            executor.run(functions.always_fail)
        # The executor goes on with new actors.
        self.assertEqual(sorted(one[0] for one in executor.run(functions.ranks)), [0, 1])

    def test_behind_the_limit_of_resets_a_loss_is_the_end(self):
        executor = self.executor(num_workers=2, min_workers=1, reset_limit=0)
        run = Background(executor, functions.train, 30, self.folder, 1, 5)
        with self.assertRaises(ray.exceptions.RayActorError):
            run.end()

    def test_without_room_it_is_said_how_many_came(self):
        executor = RayExecutor(num_workers=3, min_workers=3, cpus_per_worker=self.CPUS / 2, elastic_timeout=30)
        with self.assertRaisesRegex(HorovodInternalError, "room for 2 workers within 30 s, at least 3"):
            executor.start()


class Nodes(Case):
    """Two nodes of one machine, of which one comes and goes."""

    @classmethod
    def setUpClass(cls):
        from ray.cluster_utils import Cluster
        cls.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": SMALL,
                                                                  "include_dashboard": False})
        ray.init(address=cls.cluster.address, logging_level="ERROR", log_to_driver=False)

    @classmethod
    def tearDownClass(cls):
        ray.shutdown()
        cls.cluster.shutdown()

    def test_a_job_grows_onto_a_node_that_comes_and_goes_on_without_it(self):
        executor = self.executor(max_workers=3, min_workers=2, settling_window_s=1)
        run = Background(executor, functions.train, 1, self.folder)
        self.await_file("size-2", 2)
        node = self.cluster.add_node(num_cpus=1, object_store_memory=SMALL)
        self.await_file("size-3", 3)
        self.cluster.remove_node(node, allow_graceful=False)
        self.await_file("size-2", 4)
        self.let_it_end()
        results = run.end()
        self.assertEqual([[size for _, size in sizes] for _, sizes in results], [[2, 3, 2]] * 2)


if __name__ == "__main__":
    unittest.main()
