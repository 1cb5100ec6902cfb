"""The numbers that rules depend on, with the spec's defaults.

The composition root fills them from the settings.
"""

from __future__ import annotations

import msgspec

from handlers.accounts import Account


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, unless a field says otherwise."""

    request_ttl: int = 1200
    online_window: int = 300
    check_in_window: int = 30
    text_job_lease: int = 150
    trusted_lease_cap: int = 600
    untrusted_lease_cap: int = 200
    faulted_generations: int = 2
    """Faults that a request survives."""

    concurrency: int = 30
    """Jobs of one account that may wait at once."""

    anonymous_concurrency: int = 500
    """Anonymous jobs for one model that may wait at once."""

    workers: int = 3
    """Workers of an account that is not trusted."""

    trusted_workers: int = 20
    """Workers of a trusted account."""

    admission_deadline: int = 60
    uptime_stretch: int = 600
    """Of being online, after which a worker's owner is rewarded."""

    trust_threshold: int | None = None
    """10^-4 kudos in escrow beyond which an owner earns trust; None: nobody does."""

    trust_probation: int = 7 * 86_400
    """How long an account exists before it may."""

    suspect: int = 5
    """Replies too fast to be believed that keep an account from trust, and from giving kudos."""

    fault_holdoff: int = 10
    fault_reason: int = 1000
    """Characters of what is told of the last refused reply."""

    fault_reason_ttl: int = 60
    """How long that outlives an expired request, for the completion signal."""

    content_backstop: int = 3600
    """How much longer than its request content may live, if nobody ends the request."""

    generations: int = 200
    """Hand-outs (faults and give-backs included) that wear a request out."""

    delete_retries: int = 100_000
    """Objects of a partition that may wait for their deletion (spec, Images)."""

    progress_entries: int = 1000
    progress_bytes_per_token: int = 16
    progress_stream_ttl: int = 900
    progress_stream_entries: int = 4000
    progress_lease_grace: int = 90
    progress_slack: int = 30
    """How far the logged deadline of a streamed lease runs ahead of the exact one."""

    def concurrency_of(self, account: Account) -> int:
        """Jobs that may wait at once, of all that count together for a request of the account."""
        return self.jobs_of(account.concurrency, anonymous=account.anonymous)

    def jobs_of(self, concurrency: int, *, anonymous: bool) -> int:
        """The same, by what the account was given: 0 is nothing of its own, and -1 none at all."""
        if anonymous:
            return self.anonymous_concurrency
        return max(0, concurrency or self.concurrency)

    def workers_of(self, account: Account) -> int:
        """Workers that the account may have."""
        if account.trusted:
            return max(self.trusted_workers, account.worker_invited)
        return self.workers

    def lease_cap_of(self, owner: Account) -> int:
        """Seconds from the assignment that the lease of a job of the owner's workers never passes
        (spec, Job lease)."""
        return self.trusted_lease_cap if owner.trusted else self.untrusted_lease_cap

    @property
    def content_ttl(self) -> int:
        """The backstop TTL of content, from its last move."""
        return self.request_ttl + self.content_backstop
