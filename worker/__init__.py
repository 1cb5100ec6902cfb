"""The reference worker: takes chat and text jobs from a pool and hands back what a backend answers.

It speaks HTTP and imports nothing of the server.
"""

from worker.client import Refused
from worker.loop import Pace, run

__all__ = ["Pace", "Refused", "run"]
