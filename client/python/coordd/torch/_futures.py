"""Futures of torch that may end with an error."""

from typing import Any, Optional

from torch.futures import Future


class Promise:
    """A future to hand out, and how it is completed, once.

    An error has to be raised in a callback: C++ takes what Future.set_exception() gets for a value, which is no tensor, and
    DistributedDataParallel ends with a message about a cast, or with a crash."""

    def __init__(self, devices=None):
        self._failure: Optional[BaseException] = None
        self._trigger: "Future[Any]" = Future(devices=devices)
        self.future: "Future[Any]" = self._trigger.then(self._outcome)

    def _outcome(self, completed: "Future[Any]") -> Any:
        if self._failure is not None:
            raise self._failure
        return completed.value()

    def set_result(self, result: Any) -> None:
        self._trigger.set_result(result)

    def set_exception(self, failure: BaseException) -> None:
        self._failure = failure
        self._trigger.set_result(None)
