"""Where the members of a group meet outside of its collectives, at coordd's store. A program may call what needs all of them on some
alone: those who have come say who has not, and all of them meet at the next such call.

A meeting has a number, which goes on when all have met, not when a rank has called: one to which not all come in time is left for the
next call. Each rank puts its word there, rank 0 collects them and puts an answer, and with that the meeting is over. Who gives up takes
its word back, and looks with its next call whether the meeting was over all the same: then the others may have gone on without it."""

import time
from typing import Callable, List, Optional

import torch.distributed as dist

_WORD_BYTES, _ANSWER_BYTES = 16 * 1024, 64 * 1024
_NAMED_RANKS = 16
# Of the group's timeout. What a rank has called instead, a collective say, has the timeout too, and is still there for those who give up
# before that and go on: one whose time is over ends the group.
_PATIENCE = 0.75


class Meetings:
    """Of one group. `channel` outlives it. One call at a time."""

    def __init__(self, channel) -> None:
        self._channel = channel
        # Keys of an earlier generation may be there still.
        self._prefix = f"torch.meeting/{channel.job.generation}"
        self._number = 1
        self._given_up = False  # that one, by this rank

    def meet(self, what: str, word: bytes, answer_of: Callable[[List[bytes]], bytes]) -> bytes:
        """Collective: the answer, the same on all ranks, which rank 0 makes of all words. DistBackendError: who has not come within three
        quarters of the group's timeout; and a rank was lost, or coordd's other errors."""
        channel = self._channel
        if channel.size == 1:
            return answer_of([word])
        deadline = time.monotonic() + _PATIENCE * channel.timeout_s
        if self._given_up and channel.are_there([self._key("answer")]):
            self._go_on()
        try:
            channel.put(self._word(channel.rank), word)
            answer = self._answer(word, deadline, answer_of) if channel.rank == 0 else self._await_answer(deadline)
        except BaseException:
            self._take_back()
            raise
        if answer is None:
            missing = self._missing()
            self._take_back()
            answer = self._last_look()
            if answer is None:
                raise self._not_all(what, missing)
        channel.delete(self._word(channel.rank))
        self._go_on()
        return answer

    def _key(self, kind: str, before: int = 0) -> str:
        return f"{self._prefix}/{self._number - before}/{kind}"

    def _word(self, rank: int) -> str:
        return self._key(f"word/{rank}")

    def _gave_up(self, rank: int) -> str:
        """That a rank has been there."""
        return self._key(f"given-up/{rank}")

    def _answer(self, own: bytes, deadline: float, answer_of: Callable[[List[bytes]], bytes]) -> Optional[bytes]:
        """Rank 0's. None: not all have come in time."""
        channel = self._channel
        keys = [self._word(rank) for rank in range(1, channel.size)]
        while True:
            words = [own]
            for key in keys:
                word = channel.get(key, max(deadline - time.monotonic(), 0.0), _WORD_BYTES)
                if word is None:
                    return None
                words.append(word)
            if channel.are_there(keys):
                break  # else somebody has given up meanwhile
        answer = answer_of(words)
        channel.put(self._key("answer"), answer)
        if self._number > 1:  # all have had the one before
            channel.delete(self._key("answer", before=1))
        return answer

    def _await_answer(self, deadline: float) -> Optional[bytes]:
        return self._channel.get(self._key("answer"), max(deadline - time.monotonic(), 0.0), _ANSWER_BYTES)

    def _last_look(self) -> Optional[bytes]:
        if self._channel.rank == 0 or not self._channel.are_there([self._key("answer")]):
            return None
        return self._await_answer(time.monotonic())

    def _take_back(self) -> None:
        """It may come anew."""
        self._given_up = True
        try:
            self._channel.put(self._gave_up(self._channel.rank), b"")
            self._channel.delete(self._word(self._channel.rank))
        except dist.DistBackendError:  # type: ignore[attr-defined]
            pass  # coordd cannot be reached, which the caller says

    def _go_on(self) -> None:
        if self._given_up:
            self._channel.delete(self._gave_up(self._channel.rank))
        self._number, self._given_up = self._number + 1, False

    def _missing(self) -> List[int]:
        """Those that have not come to this meeting, nor have been there and given up; some of many."""
        missing: List[int] = []
        for rank in range(self._channel.size):
            if not self._channel.are_there([self._word(rank)]) and not self._channel.are_there([self._gave_up(rank)]):
                missing.append(rank)
                if len(missing) > _NAMED_RANKS:
                    break
        return missing

    def _not_all(self, what: str, missing: List[int]) -> Exception:
        named = ", ".join(map(str, missing[:_NAMED_RANKS])) + (", ..." if len(missing) > _NAMED_RANKS else "")
        who = (f"rank {named} of the group has not come to it" if len(missing) == 1 else f"ranks {named} of the group have not come to it"
               if missing else "the ranks of the group have come to it, but not at one time")
        return dist.DistBackendError(  # type: ignore[attr-defined]
            f"coordd: {what}: {who} within {_PATIENCE * self._channel.timeout_s:g} s, three quarters of the group's timeout: expected all "
            "ranks of the group to call it, in one order with others of its kind; the next one that all call is in step again "
            "[DEADLINE_EXCEEDED]")
