"""What happens to the deployment as a whole, and to the settler's fences."""

from __future__ import annotations

from events.base import Event


class ModesChanged(Event, frozen=True, kw_only=True, tag="modes-changed"):
    """The whole deployment works in other modes from now on."""

    maintenance: bool  # no new requests are taken, waiting jobs are cancelled


class Settled(Event, frozen=True, kw_only=True, tag="settled"):
    """The settler came this far in a source log without an effect to carry here (or with one that
    no longer applies)."""

    source: int
    source_position: str
