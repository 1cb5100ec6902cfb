-- Accounts, their ledger and what is told of both: projections.accounts. Amounts are 10^-4 kudos,
-- times milliseconds of the Redis clock, positions those of the partition's log.
CREATE TABLE accounts (
    user_id bigint PRIMARY KEY,
    partition int NOT NULL,
    name text NOT NULL,  -- empty once it is deleted
    kind text NOT NULL CHECK (kind IN ('registered', 'pseudonymous', 'anonymous')),
    floor bigint NOT NULL,
    trusted boolean NOT NULL,
    moderator boolean NOT NULL,
    flagged boolean NOT NULL,
    service boolean NOT NULL,
    education boolean NOT NULL,
    patron boolean NOT NULL,
    special boolean NOT NULL,
    vpn boolean NOT NULL,
    customizer boolean NOT NULL,
    trusted_ms bigint NOT NULL,  -- 0: since ever, or not at all
    concurrency bigint NOT NULL,
    worker_invited bigint NOT NULL,
    public_workers boolean NOT NULL,
    monthly_kudos bigint NOT NULL,
    usage_multiplier bigint NOT NULL,  -- 10^-3
    suspicious bigint NOT NULL,
    kudos bigint NOT NULL,
    escrow bigint NOT NULL,
    accumulated bigint NOT NULL,  -- with the next four: where `kudos` came from, and went
    gifted bigint NOT NULL,
    admin bigint NOT NULL,
    received bigint NOT NULL,
    recurring bigint NOT NULL,
    created_ms bigint NOT NULL,
    deleted_ms bigint,
    position_ms bigint NOT NULL,  -- of the last event that changed this row
    position_seq bigint NOT NULL,
    CHECK (kudos = accumulated + gifted + admin + received + recurring)
) WITH (fillfactor = 70);

-- One row a movement, kept when its account is deleted.
CREATE TABLE ledger (
    partition int NOT NULL,
    position_ms bigint NOT NULL,
    position_seq bigint NOT NULL,
    line int NOT NULL,  -- of those of one event
    user_id bigint NOT NULL,
    cause text NOT NULL,  -- events.ledger
    amount bigint NOT NULL,
    escrow bigint NOT NULL,
    burn bigint NOT NULL,
    request_id uuid,
    generation_id uuid,
    worker_id uuid,
    counterparty bigint,
    shared_key uuid,
    reference text,
    PRIMARY KEY (partition, position_ms, position_seq, line)
);

CREATE INDEX ledger_accounts
    ON ledger (user_id, position_ms DESC, position_seq DESC, line DESC);

-- Work asked for and done, kept for each partition that it came in.
CREATE TABLE account_records (
    user_id bigint NOT NULL,
    partition int NOT NULL,
    usage_tokens bigint NOT NULL,
    requests bigint NOT NULL,
    contribution_tokens bigint NOT NULL,
    fulfillments bigint NOT NULL,
    PRIMARY KEY (user_id, partition)
) WITH (fillfactor = 70);

CREATE TABLE worker_kudos (
    worker_id uuid NOT NULL,
    partition int NOT NULL,
    generated bigint NOT NULL,  -- escrow included, as the next one
    uptime bigint NOT NULL,
    contributions bigint NOT NULL,  -- tokens
    PRIMARY KEY (worker_id, partition)
) WITH (fillfactor = 70);

CREATE INDEX workers_users ON workers (user_id);
CREATE INDEX waiting_prompts_users ON waiting_prompts (user_id) WHERE user_id <> 0;

-- Write the folded changes of one batch. Each account is in at most one of `opened` and the other
-- two. Beside what `changed` sets all are counts: the checkpoint in the same statement makes them
-- count once. Returns nothing that became free (see eligibility_write).
CREATE FUNCTION accounts_write(changes jsonb) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    IF changes ? 'opened' THEN
        INSERT INTO accounts (
            user_id, partition, name, kind, floor, trusted, moderator, flagged, service, education,
            patron, special, vpn, customizer, trusted_ms, concurrency, worker_invited,
            public_workers, monthly_kudos, usage_multiplier, suspicious, kudos, escrow, accumulated,
            gifted, admin, received, recurring, created_ms, deleted_ms, position_ms, position_seq
        )
        SELECT
            user_id, partition, name, kind, floor, trusted, moderator, flagged, service, education,
            patron, special, vpn, customizer, trusted_ms, concurrency, worker_invited,
            public_workers, monthly_kudos, usage_multiplier, suspicious, kudos, escrow, accumulated,
            gifted, admin, received, recurring, created_ms, deleted_ms, position_ms, position_seq
        FROM jsonb_populate_recordset(NULL::accounts, changes -> 'opened');
    END IF;
    IF changes ? 'changed' THEN
        UPDATE accounts a
        SET (
            name, trusted, moderator, flagged, service, education, patron, special, vpn, customizer,
            trusted_ms, concurrency, worker_invited, public_workers, monthly_kudos,
            usage_multiplier, suspicious, deleted_ms, position_ms, position_seq
        ) = (
            SELECT
                n.name, n.trusted, n.moderator, n.flagged, n.service, n.education, n.patron,
                n.special, n.vpn, n.customizer, n.trusted_ms, n.concurrency, n.worker_invited,
                n.public_workers, n.monthly_kudos, n.usage_multiplier, n.suspicious, n.deleted_ms,
                n.position_ms, n.position_seq
            FROM jsonb_populate_record(a, c.change) n
        )
        FROM jsonb_array_elements(changes -> 'changed') AS c (change)
        WHERE a.user_id = (c.change ->> 'user_id')::bigint;
    END IF;
    IF changes ? 'moved' THEN
        UPDATE accounts a SET
            kudos = a.kudos + m.kudos, escrow = a.escrow + m.escrow,
            accumulated = a.accumulated + m.accumulated, gifted = a.gifted + m.gifted,
            admin = a.admin + m.admin, received = a.received + m.received,
            recurring = a.recurring + m.recurring, suspicious = a.suspicious + m.suspicious,
            position_ms = m.position_ms, position_seq = m.position_seq
        FROM jsonb_populate_recordset(NULL::accounts, changes -> 'moved') m
        WHERE a.user_id = m.user_id;
    END IF;
    INSERT INTO ledger (
        partition, position_ms, position_seq, line, user_id, cause, amount, escrow, burn,
        request_id, generation_id, worker_id, counterparty, shared_key, reference
    )
    SELECT
        partition, position_ms, position_seq, line, user_id, cause, amount, escrow, burn,
        request_id, generation_id, worker_id, counterparty, shared_key, reference
    FROM jsonb_populate_recordset(NULL::ledger, changes -> 'ledger');
    INSERT INTO account_records AS r (
        user_id, partition, usage_tokens, requests, contribution_tokens, fulfillments
    )
    SELECT
        user_id, partition, usage_tokens, requests, contribution_tokens, fulfillments
    FROM jsonb_populate_recordset(NULL::account_records, changes -> 'records')
    ON CONFLICT (user_id, partition) DO UPDATE SET
        usage_tokens = r.usage_tokens + excluded.usage_tokens,
        requests = r.requests + excluded.requests,
        contribution_tokens = r.contribution_tokens + excluded.contribution_tokens,
        fulfillments = r.fulfillments + excluded.fulfillments;
    INSERT INTO worker_kudos AS w (
        worker_id, partition, generated, uptime, contributions
    )
    SELECT
        worker_id, partition, generated, uptime, contributions
    FROM jsonb_populate_recordset(NULL::worker_kudos, changes -> 'workers')
    ON CONFLICT (worker_id, partition) DO UPDATE SET
        generated = w.generated + excluded.generated, uptime = w.uptime + excluded.uptime,
        contributions = w.contributions + excluded.contributions;
    RETURN NULL;
END
$$;
