"""A probe process: started, listened to, killed when it falls silent, and replaced with growing delay.

What runs in it calls into drivers, and such a call may hang for ever, or end the process. Here a thread reads what it
prints, one JSON object a line, so that nothing of that reaches the process that wants to know.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

logger = logging.getLogger("dask_resilient")

SILENCE = 5.0
"""Seconds without an answer after which a probe process is taken for hung: ten of its intervals."""

PATIENCE = 20.0
"""Seconds that a probe process has for its first answer: about what it gives the CUDA driver."""

FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
"""Seconds before a probe process is replaced: doubled as long as none of them gets to an answer."""

GLANCE = 1.0
"""Seconds between two words about a silence."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A process that does not answer."""

    seconds: float
    """Since the last answer, whichever process gave it; 0 = it answers again."""
    timeouts: int
    """Processes in a row that were killed for their silence."""
    starved: bool
    """Whether the process gets no processor time, as far as can be told: then its silence says nothing."""
    call: str
    """What it was doing, if it said so."""


class ProbeProcess:
    """Keeps one probe process alive.

    Parameters
    ----------
    command
        Starts the process.
    hear
        Called with each object that it prints, from a thread; says whether that is an answer, which ends a silence.
    silent
        Called from the same thread once a second while no answer comes, and once when one comes again.
    ended
        Called with the reason when the process ended by itself, cannot be started, or was killed for its silence.
    greeting
        Gives the lines that the process is told first.
    silence, patience, first_delay
        Seconds; see `SILENCE`, `PATIENCE` and `FIRST_DELAY`.
    name
        Of the thread.
    """

    def __init__(
        self,
        command: Sequence[str],
        hear: Callable[[dict[str, Any]], bool],
        *,
        silent: Callable[[Silence], None],
        ended: Callable[[str], None],
        greeting: Callable[[], Sequence[bytes]] = lambda: (),
        silence: float = SILENCE,
        patience: float = PATIENCE,
        first_delay: float = FIRST_DELAY,
        name: str = "dask-resilient-probe",
    ) -> None:
        self._command = command
        self._hear, self._silent, self._ended, self._greeting = hear, silent, ended, greeting
        self._silence, self._patience, self._first_delay = silence, patience, first_delay
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._answered = monotonic()
        self._told = False
        self._timeouts = 0
        self._glanced = 0.0
        self._call, self._starved = "", False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # -- life --------------------------------------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Say whether it was told to end."""
        return self._stop.is_set()

    def start(self) -> None:
        """Start the process and its reader."""
        self._answered = monotonic()
        self._thread.start()

    def stop(self) -> None:
        """End both; does not wait for them."""
        self._stop.set()
        with self._lock:
            if self._process is not None:
                _kill(self._process)

    def tell(self, line: bytes) -> None:
        """Tell the process something, if it runs; one that starts later is told by the greeting."""
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                process.stdin.write(line)
                process.stdin.flush()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        delay = self._first_delay
        while not self.stopped:
            before = self._answered
            try:
                reason = self._serve()
            except Exception as e:
                reason = f"its probe process cannot be started: {e!r}"
            if self._stop.is_set():
                break
            self._ended(reason)
            if self._answered != before:
                delay = self._first_delay
            self._wait(delay)
            delay = min(2 * delay, LONGEST_DELAY)

    def _wait(self, seconds: float) -> None:
        deadline = monotonic() + seconds
        while not self._stop.wait(max(0.0, min(GLANCE, deadline - monotonic()))) and monotonic() < deadline:
            self._glance()

    def _serve(self) -> str:
        """Listen to one process until it ends, or falls silent; give the reason."""
        process = self._process = subprocess.Popen(  # noqa: S603 - a command of our own
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0
        )
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            for line in self._greeting():
                self.tell(line)
            return self._listen(process.stdout.fileno())
        finally:
            with self._lock:  # once it was waited for, its number may be another's
                self._process = None
            _kill(process)
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.stdout.close()
            # A process that hangs inside the driver ends when the driver lets go of it, and nobody waits for that.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)

    def _listen(self, fd: int) -> str:
        begin = said = monotonic()  # when it last got on with its work, and when it last said anything
        patience, rest = self._patience, b""
        poll = select.poll()  # `select.select` knows the first 1,024 files of a process only
        poll.register(fd, select.POLLIN)
        while not self.stopped:
            if poll.poll(1000 * min(GLANCE, self._silence)):
                data = os.read(fd, 65536)
                if not data:
                    return f"its probe process ended{self._how()}"
                said = monotonic()
                *lines, rest = (rest + data).split(b"\n")
                if self._take(lines):
                    begin, patience = said, self._silence
            if poll.poll(0):
                continue  # this thread did not get to run for a while; what was said meanwhile comes first
            now = monotonic()
            if now - begin >= self._silence:
                # It says once a second that a call hangs, so one that says nothing at all does not get to run.
                self._starved = now - said >= self._silence
            self._glance()
            if now - begin >= patience:
                self._timeouts += 1
                return f"its probe process has not answered for {patience:g} s: {self._call or 'a call'} hangs"
        return ""

    def _how(self) -> str:
        """Say how the process ended, as far as that is known soon."""
        process, deadline = self._process, monotonic() + GLANCE
        # It is not waited for yet, else its number might be another's when what it has started is killed.
        options = os.WEXITED | os.WNOWAIT | os.WNOHANG
        while process is not None and monotonic() < deadline:
            end = os.waitid(os.P_PID, process.pid, options)
            if end is not None:
                if end.si_code == os.CLD_EXITED:
                    return f" with exit status {end.si_status}"
                return f" by signal {end.si_status} ({signal.strsignal(end.si_status)})"
            self._stop.wait(0.01)
        return ""  # it only closed its output

    def _take(self, lines: Sequence[bytes]) -> bool:
        """Take what the process said; say whether it gets on with its work."""
        works = False
        for line in lines:
            one = json.loads(line)
            if "hung" in one:
                self._call = str(one["hung"])
                continue
            works, self._starved = True, False
            if self._hear(one):
                self._answer(monotonic())
        return works

    def _answer(self, now: float) -> None:
        self._answered = now
        self._timeouts, self._call, self._starved = 0, "", False
        if self._told:
            self._told = False
            self._silent(Silence(0.0, 0, starved=False, call=""))

    def _glance(self) -> None:
        now = monotonic()
        if now - self._answered >= self._silence and now - self._glanced >= GLANCE * 0.9:
            self._glanced, self._told = now, True
            self._silent(Silence(now - self._answered, self._timeouts, self._starved, self._call))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it has started: they are one group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
