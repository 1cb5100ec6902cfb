-- Requests for certain workers only, one row for each worker that one lists and each of its models:
-- a pop finds those that list its worker here, and walks past no others.
CREATE TABLE queue_listed (
    worker text NOT NULL,
    chat boolean NOT NULL,
    model text NOT NULL,
    class text NOT NULL,
    rank bigint NOT NULL,
    request_id uuid NOT NULL,
    partition int NOT NULL,
    PRIMARY KEY (worker, chat, model, class, rank, request_id)
);

-- Their classes come behind all others (projections.eligibility.LISTED), where the ranges end for
-- everybody. Nothing of the lists themselves is in a class.
UPDATE queue SET class = '~' || class WHERE only_workers <> '{}';
INSERT INTO queue_listed
SELECT DISTINCT w.worker, q.chat, q.model, q.class, q.rank, q.request_id, q.partition
FROM queue q CROSS JOIN unnest(q.only_workers) AS w (worker);

-- As before, with what is compared one by one: a range is walked in its index alone.
DROP INDEX queue_ranges;
CREATE INDEX queue_ranges ON queue (chat, model, class, rank DESC, request_id DESC)
    INCLUDE (max_length, max_context_length, tools_temperature) WHERE waiting > 0;

-- Write the folded changes of one batch. Each row is named at most once in each part of `changes`.
-- Returns the models of jobs that waited before and came back to wait again.
CREATE OR REPLACE FUNCTION eligibility_write(changes jsonb) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    requests jsonb := changes -> 'queue';
    came_back text[];
BEGIN
    IF requests ? 'insert' THEN
        WITH inserted AS (
            INSERT INTO queue (
                request_id, model, partition, rank, waiting, chat, max_length, max_context_length,
                features, images, tools_temperature, only_workers, ignore_workers, trusted_workers,
                validated_backends, slow_workers, class, user_id, holdoff_worker, holdoff_ms, ttl,
                created_ms, touched_ms
            )
            SELECT
                n.request_id, m.model, n.partition, n.rank, n.waiting, n.chat, n.max_length,
                n.max_context_length, n.features, n.images, n.tools_temperature, n.only_workers,
                n.ignore_workers, n.trusted_workers, n.validated_backends, n.slow_workers, n.class,
                n.user_id, n.holdoff_worker, n.holdoff_ms, n.ttl, n.created_ms, n.touched_ms
            FROM jsonb_array_elements(requests -> 'insert') AS c (change),
                jsonb_populate_record(NULL::queue, c.change) AS n,
                jsonb_array_elements_text(c.change -> 'models') AS m (model)
            RETURNING chat, model, class, rank, request_id, partition, only_workers
        )
        INSERT INTO queue_listed (worker, chat, model, class, rank, request_id, partition)
        SELECT DISTINCT w.worker, i.chat, i.model, i.class, i.rank, i.request_id, i.partition
        FROM inserted i CROSS JOIN unnest(i.only_workers) AS w (worker);
    END IF;
    IF requests ? 'update' THEN
        WITH changed AS (
            UPDATE queue q
            SET (waiting, holdoff_worker, holdoff_ms, touched_ms) = (
                SELECT n.waiting, n.holdoff_worker, n.holdoff_ms, n.touched_ms
                FROM jsonb_populate_record(q, c.change) n
            )
            FROM jsonb_array_elements(requests -> 'update') AS c (change)
            WHERE q.request_id = (c.change ->> 'request_id')::uuid
            RETURNING q.model, q.waiting > 0 AND c.change ? 'came_back' AS back
        )
        SELECT array_agg(DISTINCT model) INTO came_back FROM changed WHERE back;
    END IF;
    IF requests ? 'delete' THEN
        WITH deleted AS (
            DELETE FROM queue q
            USING jsonb_array_elements_text(requests -> 'delete') AS c (id)
            WHERE q.request_id = c.id::uuid
            RETURNING q.chat, q.model, q.class, q.rank, q.request_id, q.only_workers
        )
        DELETE FROM queue_listed l
        USING deleted d CROSS JOIN unnest(d.only_workers) AS w (worker)
        WHERE (l.worker, l.chat, l.model, l.class, l.rank, l.request_id)
            = (w.worker, d.chat, d.model, d.class, d.rank, d.request_id);
    END IF;
    PERFORM workers_write(changes);
    RETURN came_back;
END
$$;
