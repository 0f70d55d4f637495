"""Which of several processes that failed the others have failed because of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from signal import SIGABRT
from typing import TYPE_CHECKING

from accel_launch.outcome import KILLED, OF_A_PEER, SAID

if TYPE_CHECKING:
    from accel_launch.outcome import Ended

#: seconds for the last words of a process that has ended to be read
WORDS_S = 0.05
#: seconds in which one that another has lost may still say why it fails, and end
PEER_S = 1.5


def blamed(failures: Sequence[Ended], tails: Mapping[int, str]) -> Ended | None:
    """The one of several failures, in their order, that the others come from: the first that has not lost a peer."""
    return min(failures, key=lambda ended: place_of(ended, tails.get(ended.rank, "")) == OF_A_PEER, default=None)


def may_name_another(failures: Sequence[Ended], tails: Mapping[int, str], waited_s: float) -> bool:
    """Whether it may still turn out, so long after the first failure, that another process was the cause of it."""
    culprit = blamed(failures, tails)
    lost = culprit is not None and place_of(culprit, tails.get(culprit.rank, "")) == OF_A_PEER
    return waited_s < (PEER_S if lost else WORDS_S)


def place_of(ended: Ended, said: str | None) -> int:
    """Whether a process was killed, has said why it failed, or has lost a peer."""
    from accel_launch.causes import last_cause, names_a_peer

    said = said or ""
    if ended.status == -SIGABRT and names_a_peer(said):
        return OF_A_PEER  # NCCL ends a process that has lost another one in this way
    if ended.status < 0:
        return KILLED
    cause = last_cause(said)
    return OF_A_PEER if cause is not None and cause.of_a_peer else SAID
