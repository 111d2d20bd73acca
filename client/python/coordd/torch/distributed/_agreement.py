"""What all ranks of a group agree on before they do it. A rank that cannot do it says why, and all raise that: else it would raise alone,
and the others would wait for it.

They meet at coordd's store (_meetings), and not in a collective of the group: a rank that leaves the call out is named, and the group's
collectives stay in step."""

import json
from typing import Any, Dict, List, Optional

import torch.distributed as dist

from coordd.torch.distributed._meetings import Meetings

_KINDS = (ValueError, TypeError, NotImplementedError, RuntimeError)
_TEXT_MAX = 2000  # characters of a refusal
_DIFFERENT_MAX = 32  # lists of numbers that are told apart; each has as many numbers as a group has regions, at most


def require_in_use(what: str, group: Any) -> None:
    if group._channel.has_ended():
        anew = "a pool is registered" if what == "register_mem_pool" else "a model is wrapped"
        raise ValueError(f"{what}: its process group has ended (destroy_process_group(), recover()), expected one that is in use: {anew} "
                         "anew in that")


def agree(what: str, group: Any, refusal: Optional[Exception], *numbers: int) -> List[List[int]]:
    """Collective. `numbers` of each rank, equally many or not. ValueError: the group has ended, or not all ranks have called `what`. The
    first rank's refusal, where one has any, which then names it; where all have one, each rank's own. DistBackendError: a rank has not
    come, which is named; the group goes on."""
    require_in_use(what, group)
    kind = 0 if refusal is None else next((at for at, one in enumerate(_KINDS, 1) if isinstance(refusal, one)), len(_KINDS))
    own = {"what": what, "kind": kind, "text": "" if refusal is None else str(refusal)[:_TEXT_MAX],
           "numbers": numbers if refusal is None else []}
    try:
        answer = json.loads(_meetings(group).meet(what, _bytes(own), _answer))
    except dist.DistBackendError as error:  # type: ignore[attr-defined]
        if what not in str(error):
            error.args = (f"{error} (in {what})",)
        raise
    if "other" in answer:
        rank, other, first = answer["other"]
        raise ValueError(f"{what}: rank {rank} of the group has called {other}, rank 0 {first}: expected one call on all ranks")
    if "refusal" in answer:
        if refusal is not None and answer["all"]:
            raise refusal
        rank, kind, text = answer["refusal"]
        raise _KINDS[kind - 1](f"{text} (rank {rank} of the group)") from (refusal.__cause__ if refusal is not None else None)
    return [answer["lists"][one] for one in answer["of"]] if "of" in answer else answer["lists"] * group._size_


def _meetings(group: Any) -> Meetings:
    made = group.__dict__.get("_meetings")
    if made is None:
        made = group.__dict__["_meetings"] = Meetings(group._channel)
    return made


def _answer(words: List[bytes]) -> bytes:
    """Of all ranks' words, on one of them."""
    everyone = [json.loads(word) for word in words]
    answer: Dict[str, Any] = {}
    refusing = [rank for rank, one in enumerate(everyone) if one["kind"]]
    other = [rank for rank, one in enumerate(everyone) if one["what"] != everyone[0]["what"]]
    if other:
        answer["other"] = [other[0], everyone[other[0]]["what"], everyone[0]["what"]]
    elif refusing:
        first = everyone[refusing[0]]
        answer.update(refusal=[refusing[0], first["kind"], first["text"]], all=len(refusing) == len(everyone))
    else:
        lists: List[List[int]] = []
        places: List[int] = []
        for one in everyone:
            if one["numbers"] not in lists and len(lists) < _DIFFERENT_MAX:
                lists.append(one["numbers"])
            # Of more than so many different ones the last that was kept stands for the others.
            places.append(lists.index(one["numbers"]) if one["numbers"] in lists else len(lists) - 1)
        answer["lists"] = lists
        if len(lists) > 1:
            answer["of"] = places
    return _bytes(answer)


def _bytes(value: Dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def require_one(what: str, name: str, of_ranks: List[int]) -> None:
    """ValueError, on all ranks: they have said different numbers."""
    if len(set(of_ranks)) > 1:
        found = ", ".join(map(str, of_ranks[:16])) + (", ..." if len(of_ranks) > 16 else "")
        raise ValueError(f"{what}: {name}: {found} on the ranks, expected one number on all ranks")
