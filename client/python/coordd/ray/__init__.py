"""coordd on Ray, with the names of horovod.ray: actors are the workers of a job.

    import ray
    from coordd.ray import RayExecutor

    ray.init()
    executor = RayExecutor(num_workers=4)
    executor.start()
    results = executor.run(train, args=[10])  # a list, by rank; train() calls hvd.init() itself
    executor.shutdown()

With ``min_workers`` the job is elastic: an actor that is lost is replaced, and the others go on meanwhile. For Ray Train there is
coordd.ray.train.CoorddConfig. Many jobs, such as the trials of Ray Tune, share one coordd: see Coordinator.
"""

from coordd.ray._coordinator import Coordinator
from coordd.ray._executor import RayExecutor, Settings

__all__ = ["Coordinator", "RayExecutor", "Settings"]
