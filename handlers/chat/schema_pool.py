"""Checks documents against schemas of strangers, bounded in time, memory and number.

A schema can be made to cost hours (nested quantifiers), so checks run in processes that can be
killed (`killable`).
"""

from __future__ import annotations

from collections.abc import Set

import structlog

from handlers.chat.verdicts import OVERDUE, Verdict
from handlers.errors import ChatVerificationUnavailable
from handlers.processes.expendable import EXHAUSTED
from handlers.processes.killable import DIED, LATE, NOBODY, Killable, NoneFree

logger = structlog.get_logger()

PROGRAM = "handlers.chat.schema_process"
MEMORY_BYTES = 512 * 2**20
"""Address space of one process. The interpreter and its modules take about 60 MiB of it."""
WAITING = 16
"""Checks that wait for a process; more are sent away to come again."""


class SchemaPool:
    """A few checking processes, each for one document at a time.

    seconds    of CPU that one check may take; one may wait for a process twice as long
    processes  at most
    patience   times `seconds` after which a check that is not done is given up
    """

    def __init__(
        self,
        *,
        seconds: float,
        processes: int,
        memory: int = MEMORY_BYTES,
        patience: float = 1.0,
    ) -> None:
        self._processes = Killable(
            PROGRAM,
            seconds=seconds,
            deadline=patience * seconds,
            processes=processes,
            waiting=WAITING,
            memory=memory,
        )

    async def check(self, schema: bytes, document: bytes, parties: Set[int] = NOBODY) -> Verdict:
        """Whether the document conforms; without a schema, whether it is a JSON object.

        `parties`: the accounts that sent them, each of which gets its share of the processes. Raise
        ChatVerificationUnavailable where it cannot be checked soon.
        """
        try:
            word, detail = await self._processes.ask(schema, document, parties)
        except NoneFree:
            raise ChatVerificationUnavailable from None
        if word in (DIED, LATE, EXHAUSTED):
            logger.warning("reply_check_stopped", verdict=word)
        return Verdict(OVERDUE if word in (DIED, LATE) else word, detail.decode())

    async def close(self) -> None:
        """End the idle processes."""
        await self._processes.close()
