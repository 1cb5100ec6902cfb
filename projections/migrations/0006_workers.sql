-- What owners and moderators say of workers, and how long each was online (milliseconds).
ALTER TABLE workers
    ADD COLUMN info text NOT NULL DEFAULT '',
    ADD COLUMN maintenance_msg text NOT NULL DEFAULT '',
    ADD COLUMN uptime_ms bigint NOT NULL DEFAULT 0;

CREATE INDEX workers_name ON workers (name);
CREATE INDEX workers_online ON workers (last_check_in_ms);

-- Write the folded changes of workers: those that are gone first (one may have come back under its
-- id), then declarations, then what was changed of them, then what is counted.
CREATE FUNCTION workers_write(changes jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF changes ? 'workers_gone' THEN
        DELETE FROM workers w
        USING jsonb_array_elements_text(changes -> 'workers_gone') AS c (id)
        WHERE w.id = c.id::uuid;
    END IF;
    IF changes ? 'workers' THEN
        INSERT INTO workers AS w (
            id, partition, name, user_id, trusted, models, threads, bridge_agent, max_length,
            max_context_length, accepts_chat_jobs, accepts_prompt_jobs, chat_model_id,
            chat_features, chat_max_context_length, chat_max_length, chat_tools_max_temperature,
            image_transports, last_check_in_ms, created_ms, uptime_ms
        )
        SELECT
            id, partition, name, user_id, trusted, models, threads, bridge_agent, max_length,
            max_context_length, accepts_chat_jobs, accepts_prompt_jobs, chat_model_id,
            chat_features, chat_max_context_length, chat_max_length, chat_tools_max_temperature,
            image_transports, last_check_in_ms, created_ms, uptime_ms
        FROM jsonb_populate_recordset(NULL::workers, changes -> 'workers')
        ON CONFLICT (id) DO UPDATE SET
            name = excluded.name, user_id = excluded.user_id, trusted = excluded.trusted,
            models = excluded.models, threads = excluded.threads,
            bridge_agent = excluded.bridge_agent, max_length = excluded.max_length,
            max_context_length = excluded.max_context_length,
            accepts_chat_jobs = excluded.accepts_chat_jobs,
            accepts_prompt_jobs = excluded.accepts_prompt_jobs,
            chat_model_id = excluded.chat_model_id, chat_features = excluded.chat_features,
            chat_max_context_length = excluded.chat_max_context_length,
            chat_max_length = excluded.chat_max_length,
            chat_tools_max_temperature = excluded.chat_tools_max_temperature,
            image_transports = excluded.image_transports,
            last_check_in_ms = excluded.last_check_in_ms, uptime_ms = excluded.uptime_ms;
    END IF;
    IF changes ? 'workers_changed' THEN
        UPDATE workers w
        SET (maintenance, maintenance_msg, paused, info) = (
            SELECT n.maintenance, n.maintenance_msg, n.paused, n.info
            FROM jsonb_populate_record(w, c.change) n
        )
        FROM jsonb_array_elements(changes -> 'workers_changed') AS c (change)
        WHERE w.id = (c.change ->> 'id')::uuid;
    END IF;
    IF changes ? 'speeds' THEN
        UPDATE workers w SET speed = c.value::float8
        FROM jsonb_each_text(changes -> 'speeds') AS c
        WHERE w.id = c.key::uuid;
    END IF;
    -- The only change that is not absolute. The checkpoint in the same statement makes it count once.
    IF changes ? 'aborts' THEN
        UPDATE workers w
        SET aborted_jobs = w.aborted_jobs + c.value::int,
            uncompleted_jobs = w.uncompleted_jobs + c.value::int
        FROM jsonb_each_text(changes -> 'aborts') AS c
        WHERE w.id = c.key::uuid;
    END IF;
END
$$;

-- Write the folded changes of one batch. Each row is named at most once in each part of `changes`.
-- Returns the models of jobs that waited before and came back to wait again.
CREATE OR REPLACE FUNCTION eligibility_write(changes jsonb) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    requests jsonb := changes -> 'queue';
    came_back text[];
BEGIN
    IF requests ? 'insert' THEN
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
            jsonb_array_elements_text(c.change -> 'models') AS m (model);
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
        DELETE FROM queue q
        USING jsonb_array_elements_text(requests -> 'delete') AS c (id)
        WHERE q.request_id = c.id::uuid;
    END IF;
    PERFORM workers_write(changes);
    RETURN came_back;
END
$$;
