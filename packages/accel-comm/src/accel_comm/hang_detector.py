"""Look into waits that last, together with the other ranks: step by step, without a thread or a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple, final

from accel_comm.hang_diagnosis import Diagnosis, RankStatus, diagnose
from accel_comm.status_store import BEAT, DIAGNOSED, QUESTION, Heartbeat, StatusStore

#: seconds between two requests of a rank that does not wait
HEARTBEAT_S = 5.0
#: seconds after which a wait is looked into; then after twice as long, and so on
LOOK_S = 3.75
#: seconds after which a wait is told, the first time
NOTICE_S = 60.0
#: seconds between two looks at what was answered, at first, and that an answer may be late
READ_S, LATE_S = 0.25, 0.75
#: seconds after a diagnosis in which each rank that answers polls, hears of it and leaves
ENDING_S = HEARTBEAT_S / 2 + READ_S + LATE_S


class Wait(NamedTuple):
    """The exchange that a rank waits in.

    Args:
        number: Number of the exchange in the process.
        seconds: Seconds that it has lasted.
        patient: Whether it may last.
    """

    number: int
    seconds: float
    patient: bool = False


@final
class HangDetector:
    """The part of a rank in finding waits in vain.

    All ranks read one number in turn. A rank whose wait lasts asks all by that number, unless another has just asked,
    and alone reads the answers: for a diagnosis each rank answers once. The rank looks again when the wait has lasted
    twice as long, when a process has ended, and at the limit. The result of the newest look is in the store, so any
    rank may take the next look.

    Args:
        store: Notes of the ranks.
        size: Number of ranks.
        status: Function that returns the activity of this rank.
        limit_s: Seconds after which a wait is in vain.
    """

    def __init__(self, store: StatusStore, size: int, status: Callable[[], RankStatus], *, limit_s: float) -> None:
        self._store, self._size, self._status = store, size, status
        self._limit_s = limit_s
        self._heartbeat_s, self._look_s = min(HEARTBEAT_S, limit_s / 4), min(LOOK_S, limit_s / 2)
        #: seconds before the limit at which all are asked, so that they have answered at the limit
        self._early_s = self._heartbeat_s + LATE_S
        self._poll_at: float | None = None
        self._alert_until = 0.0
        self._heartbeat = Heartbeat.of(0)
        self._answered = 0
        #: after which question this rank would have asked, and how often another did first
        self._claims = 0, 0
        #: the exchange that is looked into, and for how long it has to last for the next look
        self._number, self._next_look_s, self._ends = 0, 0.0, 0
        self._question: _Question | None = None
        self._leave_at = 0.0
        #: whether a diagnosis has ended the job
        self.diagnosed = False
        #: whether those that answer have had the time to hear of it, so that this process can leave
        self.over = False
        self._post(RankStatus(store.rank), 0)

    def turn(self, now: float, wait: Wait | None) -> Diagnosis | None:
        """Take the next step, and return the diagnosis to print, or None.

        Args:
            now: Time in seconds; a few calls a second are enough.
            wait: The exchange that this rank waits in.

        Raises:
            RuntimeError: If the store is gone.
        """
        if self._poll_at is None:
            self._poll_at = now + self._heartbeat_s * (self._store.rank + 1) / self._size  # not all at once
        if self.diagnosed:
            self.over = now >= self._leave_at
        elif self._question is not None:
            return self._collect(self._question, now, wait)
        else:
            due = self._is_due(wait)
            if due or now >= self._poll_at:
                self._look(now, wait, due=due)
        return None

    def _is_due(self, wait: Wait | None) -> bool:
        if wait is None:
            return False
        if wait.number != self._number:
            self._number, self._next_look_s = wait.number, self._look_s
        return wait.seconds >= self._next_look_s

    def _look(self, now: float, wait: Wait | None, *, due: bool) -> None:
        before, heartbeat = self._heartbeat, self._poll(now, wait)
        if (
            self.diagnosed
            or wait is None
            or not (due or (wait.seconds >= self._look_s and heartbeat.ends != self._ends))
        ):
            return
        self._next_look_s, self._ends = self._after(wait), heartbeat.ends
        if heartbeat.questions != before.questions:
            return  # somebody looks, or has just looked, into all waits
        # whoever has the claim may be gone before it asks: then there is another the next time
        question, lost = self._claims if self._claims[0] == heartbeat.questions else (heartbeat.questions, 0)
        if self._store.count(f"claim/{question}/{lost}", 1) == 1:
            self._ask(now)
        else:
            self._claims = question, lost + 1

    def _is_final(self, wait: Wait) -> bool:
        """Return whether the wait is to be ended as soon as all have answered and the limit is there."""
        return not wait.patient and wait.seconds >= self._limit_s - self._early_s

    def _after(self, wait: Wait) -> float:
        """Return the seconds that the wait has to last for the look after this one."""
        if self._is_final(wait):
            return max(wait.seconds, self._limit_s) + self._heartbeat_s
        seconds, last = self._next_look_s, max(self._limit_s - self._early_s, self._look_s)
        while seconds <= wait.seconds:
            seconds = min(2 * seconds, last) if seconds < last else 2 * seconds
        return seconds

    def _poll(self, now: float, wait: Wait | None) -> Heartbeat:
        # the first rank's is a sign of life for those on other machines that wait for its work
        self._heartbeat = heartbeat = self._store.heartbeat(BEAT if self._store.rank == 0 else 0)
        if heartbeat.diagnosed:
            self._leave(now)
        elif heartbeat.questions > self._answered:
            self._say(heartbeat.questions)
            self._alert_until = now + 2 * self._early_s + LATE_S  # until the diagnosis, if it waits for the limit
        pause = self._heartbeat_s
        if wait is not None and wait.seconds >= self._look_s:
            pause = min(pause, wait.seconds / 4)
        self._poll_at = now + (min(pause, self._heartbeat_s / 4) if now < self._alert_until else pause)
        return heartbeat

    def _say(self, question: int) -> None:
        self._answered = question
        self._post(self._status(), question)

    def _post(self, status: RankStatus, question: int) -> None:
        self._store.post(f"status/{status.rank}", asdict(replace(status, asked=question)))

    def _ask(self, now: float, *, again: bool = False) -> None:
        asked = self._store.heartbeat(QUESTION).questions
        # the others poll about as often as this rank does
        read_at = now + max(READ_S, ((self._poll_at or now) - now) / 2)
        self._question = _Question(asked, [None] * self._size, now, now + self._early_s, read_at, again)
        self._say(asked)

    def _collect(self, question: _Question, now: float, wait: Wait | None) -> Diagnosis | None:
        if now < min(question.read_at, question.until):
            return None
        self._poll(now, wait)
        if self.diagnosed:
            return None
        missing = [rank for rank, status in enumerate(question.answers) if status is None]
        for rank, note in zip(missing, self._store.read_all([f"status/{rank}" for rank in missing]), strict=True):
            if note is not None and (note["asked"] >= question.number or note["ended"]):
                question.answers[rank] = RankStatus(**note)
        same = wait is not None and wait.number == self._number
        if None in question.answers and now < question.until:
            question.read_at = now + max(now - question.asked_at, READ_S)
            return None
        if wait is not None and same and self._is_final(wait) and wait.seconds < self._limit_s:
            question.read_at = question.until = now + min(self._limit_s - wait.seconds, self._heartbeat_s / 4)
            return None
        self._question = None
        return self._diagnose(question, now) if same else None

    def _diagnose(self, question: _Question, now: float) -> Diagnosis | None:
        answers, size = question.answers, self._size
        answers[self._store.rank] = self._status()
        missing = [rank for rank, status in enumerate(answers) if status is None]
        lives = dict(zip(missing, self._store.all_alive(missing), strict=True))
        numbers = [None if status is None or status.waits is None else status.number for status in answers]
        last, notice = self._store.read("look") or ([None] * size, NOTICE_S)
        if not any(number is not None and number == earlier for number, earlier in zip(numbers, last, strict=True)):
            notice = NOTICE_S  # other waits than those that were told
        alive = [lives.get(rank, True) for rank in range(size)]
        diagnosis = diagnose(answers, last, alive, limit=self._limit_s, notice=notice)
        is_notice = diagnosis is not None and not diagnosis.fatal
        self._store.post("look", [numbers, 2 * notice if is_notice else notice])
        if diagnosis is None or is_notice:
            return diagnosis
        if not diagnosis.sure and numbers != last:
            # what was said of one may have been over when another said its own
            if not question.again:
                self._ask(now, again=True)
            return None
        if self._store.count("diagnoses", 1) > 1:
            return None
        self._store.post("diagnosis", diagnosis.text)
        self._leave(now)
        self._store.heartbeat(DIAGNOSED)
        return diagnosis

    def _leave(self, now: float) -> None:
        """Leave when the others do: who loses another in an exchange would have words of its own."""
        # in which those that have answered poll
        self.diagnosed, self._leave_at = True, now + self._heartbeat_s / 4 + READ_S


@dataclass
class _Question:
    """A question that this rank has asked all, and the answers so far."""

    number: int
    answers: list[RankStatus | None]
    asked_at: float
    until: float
    read_at: float
    #: whether it came right after another question
    again: bool
