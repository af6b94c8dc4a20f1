"""The log of a run: nothing of it may tell of a broken invariant, apart from a short list of Dask's own noise."""

from __future__ import annotations

import ast
import logging
import traceback

from tests.support.log import BAD

LOGGERS = ("distributed", "distributed.client", "dask_resilient")
"""Those of Dask's loggers that hand nothing on to another one, and the package's."""

ALLOWED = {
    "UserError": "what users' functions raise on purpose is logged as an error",
    "nobody expected this of": "loads that are made to err",
    "CommClosed": "a worker that was lost is written to",
    "Comm closed": "the same, in other words",
    "handle_request_refresh_who_has": "Dask's own: a message of a worker that was just removed",
    "ended with CancelledError": "a connection attempt to a worker that was lost",
    "failed to teardown": "a worker that never had our side is asked, as all are, to let go of it",
    "stream died during communication": "a value is fetched from a worker that was lost, and then from another",
    "Removing worker": "says that a worker was lost, which it was",
}
"""What is in an error of the log that is no failure, and why."""

GATHER = "distributed.scheduler Couldn't gather keys: "

COMING = frozenset({"waiting", "queued", "no-worker", "processing", "erred"})
"""States of a key that was lost while it was fetched, and of which the client hears again: `Client._gather` asks for a
report on it, waits, and fetches once more. One in "memory" could be asked for like that for ever."""

HANDFUL = 5
"""How often that may happen in one run."""


def comes_again(message: str) -> bool:
    """Say whether values were lost while a client fetched them, and are on their way back: Dask's own, and harmless."""
    return message.startswith(GATHER) and COMING.issuperset(ast.literal_eval(message[len(GATHER) :]).values())


class Log(logging.Handler):
    """Keeps the errors of Dask and of the package, and what is bad at any level."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.name} {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            frames = traceback.extract_tb(record.exc_info[2])
            text += f" :: {record.exc_info[1]!r} in {frames[-1].name if frames else None}"
        if record.levelno >= logging.ERROR or any(b in text for b in BAD) or "AssertionError" in text:
            self.messages.append(text)

    def bad(self) -> list[str]:
        """Give the messages that are failures."""
        again = sum(map(comes_again, self.messages)) <= HANDFUL
        return [
            m for m in self.messages if not any(allowed in m for allowed in ALLOWED) and not (again and comes_again(m))
        ]
