"""Which models a chat request may name (spec, Known models)."""

from __future__ import annotations

from api.availability import Availability, Served
from handlers.chat.context import Bound
from handlers.errors import NoEligibleWorker, UnknownChatModel
from handlers.reference import Reference


class Models:
    """Refuses models that nobody knows or serves, and tells what those who serve them allow."""

    def __init__(self, reference: Reference, availability: Availability) -> None:
        self._reference = reference
        self._availability = availability

    async def check(self, models: tuple[str, ...], key: str) -> Bound:
        """The largest limits of the online chat workers that serve any of these models.

        `key` is the body's key that named them. Raise UnknownChatModel, whose message starts with
        the first unknown entry's path; NoEligibleWorker; DatabaseUnavailable, ReadModelBehind,
        RedisUnavailable.
        """
        served = await self._availability.serving(models)
        if not served or self._unknown(models, served) is not None:
            served = await self._availability.serving(models, sure=True)
        unknown = self._unknown(models, served)
        if unknown is not None:
            path = f"{key}[{unknown}]" if key == "models" else key
            raise UnknownChatModel(f"'{path}': no model named '{models[unknown]}' is known.")
        if not served:
            raise NoEligibleWorker(_nobody(models))
        return Bound(
            max_length=max(each.max_length for each in served.values()),
            max_context_length=max(each.max_context_length for each in served.values()),
        )

    def _unknown(self, models: tuple[str, ...], served: Served) -> int | None:
        """The index of the first model that neither the reference nor an online worker knows."""
        for index, model in enumerate(models):
            if model not in served and not self._reference.known(model):
                return index
        return None


def _nobody(models: tuple[str, ...]) -> str:
    if len(models) == 1:
        return f"No worker is currently serving the model '{models[0]}'."
    names = ", ".join(f"'{model}'" for model in models)
    return f"No worker is currently serving any of the models {names}."
