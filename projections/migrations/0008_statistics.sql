-- What was generated, in buckets of time: projections.statistics. `width_ms` 0 is all time.
CREATE TABLE text_statistics (
    partition int NOT NULL,
    width_ms bigint NOT NULL,
    since_ms bigint NOT NULL,  -- when the bucket begins
    model text NOT NULL,
    requests bigint NOT NULL,  -- replies
    tokens bigint NOT NULL,
    samples bigint NOT NULL,  -- replies whose speed is known
    speed bigint NOT NULL,  -- sum of the samples, 10^-3 tokens a second
    PRIMARY KEY (width_ms, since_ms, model, partition)
) WITH (fillfactor = 70);

-- Replies of each worker, kept for each partition that they came in.
CREATE TABLE worker_fulfilments (
    worker_id uuid NOT NULL,
    partition int NOT NULL,
    fulfilments bigint NOT NULL,
    PRIMARY KEY (worker_id, partition)
) WITH (fillfactor = 70);

-- Write the folded changes of one batch. All of them are counts: the checkpoint in the same
-- statement makes them count once. Returns nothing that became free (see eligibility_write).
CREATE FUNCTION statistics_write(changes jsonb) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO text_statistics AS t (
        partition, width_ms, since_ms, model, requests, tokens, samples, speed
    )
    SELECT partition, width_ms, since_ms, model, requests, tokens, samples, speed
    FROM jsonb_populate_recordset(NULL::text_statistics, changes -> 'text')
    ON CONFLICT (width_ms, since_ms, model, partition) DO UPDATE SET
        requests = t.requests + excluded.requests, tokens = t.tokens + excluded.tokens,
        samples = t.samples + excluded.samples, speed = t.speed + excluded.speed;
    INSERT INTO worker_fulfilments AS w (worker_id, partition, fulfilments)
    SELECT worker_id, partition, fulfilments
    FROM jsonb_populate_recordset(NULL::worker_fulfilments, changes -> 'workers')
    ON CONFLICT (worker_id, partition) DO UPDATE SET
        fulfilments = w.fulfilments + excluded.fulfilments;
    DELETE FROM text_statistics t
    USING jsonb_to_recordset(changes -> 'past') AS p (partition int, width_ms bigint, until_ms bigint)
    WHERE t.partition = p.partition AND t.width_ms = p.width_ms AND t.since_ms < p.until_ms;
    RETURN NULL;
END
$$;
