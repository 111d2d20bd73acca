"""RayExecutor with a fixed number of workers."""

import os
import tempfile
import unittest

from ray_case import PATIENCE_S, RayCase, ray

from coordd import HorovodInternalError
from coordd.exceptions import UnsupportedError
from coordd.ray import Coordinator, RayExecutor
import functions


class Executor(RayCase):
    def executor(self, workers=3, **arguments):
        made = RayExecutor(RayExecutor.create_settings(timeout_s=PATIENCE_S), num_workers=workers, **arguments)
        self.addCleanup(made.shutdown)
        return made

    def test_actors_are_the_ranks_of_one_job_and_stay_so(self):
        executor = self.executor()
        executor.start(extra_env_vars={"COORDD_TIMEOUT": "50"})
        first, again = executor.run(functions.ranks), executor.run(functions.ranks)
        self.assertEqual([one[:3] for one in first], [(0, 3, 3.0), (1, 3, 3.0), (2, 3, 3.0)])
        self.assertEqual(first, again)  # the same generation in the same processes: nobody has joined anew
        self.assertEqual(len({one[4] for one in first}), 3)
        self.assertEqual(executor.run(functions.variable, args=["COORDD_TIMEOUT"]), ["50"] * 3)
        self.assertEqual([one[0] for one in ray.get(executor.run_remote(functions.ranks))], [0, 1, 2])

    def test_each_actor_has_an_object_that_calls_are_about(self):
        executor = self.executor(2)
        executor.start(executable_cls=functions.Counter, executable_args=[10], executable_kwargs={"step": 5})
        self.assertEqual(executor.execute(functions.count), [15, 15])
        self.assertEqual(executor.execute_single(functions.count, kwargs={"times": 2}), 25)
        self.assertEqual(executor.execute(lambda counter: counter.value), [25, 15])

    def test_the_error_of_the_rank_that_failed_is_raised_and_the_actors_go_on(self):
        executor = self.executor()
        executor.start()
        before = executor.run(functions.ranks)
        with self.assertRaisesRegex(KeyError, "no such column"):
            executor.run(functions.raise_on, args=[1])
        after = executor.run(functions.ranks)
        self.assertEqual([one[:3] for one in after], [one[:3] for one in before])
        self.assertEqual([one[4] for one in after], [one[4] for one in before])

    def test_a_killed_actor_is_named_in_the_errors_of_the_others(self):
        executor = self.executor()
        executor.start()
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(ray.exceptions.RayActorError):
                executor.run(functions.note_error_of, args=[1, folder])
            self.assertEqual(sorted(os.listdir(folder)), ["0", "2"])
            for name in os.listdir(folder):
                with open(os.path.join(folder, name)) as file:
                    self.assertRegex(file.read(), r"rank 1 \(host .*, pid \d+\) was lost: ")
        with self.assertRaisesRegex(HorovodInternalError, r"expected shutdown\(\) and start\(\)"):
            executor.run(functions.ranks)
        executor.shutdown()
        executor.start()  # begins anew
        self.assertEqual(len(executor.run(functions.ranks)), 3)

    def test_many_executors_share_a_coordd(self):
        with Coordinator() as coordinator:
            executors = [self.executor(2, coordinator=coordinator, job=f"shared-{i}") for i in range(2)]
            for one in executors:
                one.start()
            self.assertEqual([[rank[:3] for rank in one.run(functions.ranks)] for one in executors],
                             [[(0, 2, 1.0), (1, 2, 1.0)]] * 2)
            executors[0].shutdown()
            self.assertEqual(len(executors[1].run(functions.ranks)), 2)

    def test_hosts_have_as_many_each(self):
        executor = RayExecutor(num_hosts=1, num_workers_per_host=2)
        self.addCleanup(executor.shutdown)
        executor.start()
        self.assertEqual([one[:2] for one in executor.run(functions.ranks)], [(0, 2), (1, 2)])
        nowhere = RayExecutor(RayExecutor.create_settings(placement_group_timeout_s=0.5), num_hosts=2)
        with self.assertRaisesRegex(HorovodInternalError, "no room for .* on each of 2 nodes within 0.5 s"):
            nowhere.start()

    def test_wrong_use_is_said(self):
        for arguments in ({}, {"num_workers": 0}, {"num_workers": 2, "num_hosts": 1}, {"num_workers": 2, "min_workers": 3},
                          {"num_hosts": 2, "min_workers": 1}):
            with self.subTest(arguments), self.assertRaises(ValueError):
                RayExecutor(**arguments)
        for name in ("num_workers", "num_hosts", "num_workers_per_host", "min_workers", "max_workers"):
            for count in (0, -1, 1.5, "2", True):
                with self.subTest(name), self.assertRaisesRegex(ValueError, f"{name} is {count!r}: expected a number of workers"):
                    RayExecutor(**{"num_workers": 4, name: count})
        for name, value in (("cooldown_range", (5,)), ("cooldown_range", (5, 1)), ("on_failure", "nonsense"), ("reset_limit", -1)):
            with self.subTest(name), self.assertRaisesRegex(ValueError, f"{name} is "):
                RayExecutor(min_workers=1, max_workers=2, **{name: value})
        with self.assertRaisesRegex(HorovodInternalError, r"start\(\) has not been called"):
            RayExecutor(num_workers=1).run(functions.ranks)
        with self.assertRaises(UnsupportedError):
            RayExecutor(num_workers=1).run(functions.ranks, callbacks=[print])
        elastic = RayExecutor(num_workers=1, min_workers=1)
        self.addCleanup(elastic.shutdown)
        with self.assertRaises(UnsupportedError):
            elastic.start(executable_cls=functions.Counter)

    def test_what_ray_knows_of_an_end_is_told(self):
        from coordd.ray import _elastic
        died = ray.exceptions.RayError
        self.assertEqual(_elastic.known_end(died("The actor is dead because its node has died.")),
                         {"reason": "its node has left the cluster of Ray"})
        self.assertEqual(_elastic.known_end(died("the worker was killed due to the node running low on memory"))["signal"], 9)
        self.assertIsNone(_elastic.known_end(died("Worker unexpectedly exits with a connection error")))


if __name__ == "__main__":
    unittest.main()
