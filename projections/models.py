"""Every read model, by its name."""

from __future__ import annotations

from projections.accounts import ACCOUNTS
from projections.eligibility import ELIGIBILITY
from projections.statistics import STATISTICS
from projections.status import STATUS

PROJECTIONS = {
    projection.name: projection for projection in (STATUS, ELIGIBILITY, STATISTICS, ACCOUNTS)
}
