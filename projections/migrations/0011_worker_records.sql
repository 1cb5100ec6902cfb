-- What a worker says of the work it takes (nsfw), and how often it was faster than can be believed.
ALTER TABLE workers ADD COLUMN nsfw boolean NOT NULL DEFAULT true;
ALTER TABLE worker_fulfilments ADD COLUMN implausible bigint NOT NULL DEFAULT 0;

-- Write the folded changes of workers: those that are gone first (one may have come back under its
-- id), then declarations, then what was changed of them, then what is counted.
CREATE OR REPLACE FUNCTION workers_write(changes jsonb) RETURNS void LANGUAGE plpgsql AS $$
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
            image_transports, last_check_in_ms, created_ms, uptime_ms, nsfw
        )
        SELECT
            id, partition, name, user_id, trusted, models, threads, bridge_agent, max_length,
            max_context_length, accepts_chat_jobs, accepts_prompt_jobs, chat_model_id,
            chat_features, chat_max_context_length, chat_max_length, chat_tools_max_temperature,
            image_transports, last_check_in_ms, created_ms, uptime_ms, nsfw
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
            last_check_in_ms = excluded.last_check_in_ms, uptime_ms = excluded.uptime_ms,
            nsfw = excluded.nsfw;
    END IF;
    IF changes ? 'workers_changed' THEN
        UPDATE workers w
        SET (name, maintenance, maintenance_msg, paused, info) = (
            SELECT n.name, n.maintenance, n.maintenance_msg, n.paused, n.info
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
    -- The only changes that are not absolute. The checkpoint in the same statement makes them count once.
    IF changes ? 'aborts' THEN
        UPDATE workers w
        SET aborted_jobs = w.aborted_jobs + c.value::int,
            uncompleted_jobs = w.uncompleted_jobs + c.value::int
        FROM jsonb_each_text(changes -> 'aborts') AS c
        WHERE w.id = c.key::uuid;
    END IF;
    IF changes ? 'nonconformant' THEN
        UPDATE workers w SET nonconformant_replies = w.nonconformant_replies + c.value::int
        FROM jsonb_each_text(changes -> 'nonconformant') AS c
        WHERE w.id = c.key::uuid;
    END IF;
END
$$;

-- Write the folded changes of one batch. All of them are counts: the checkpoint in the same
-- statement makes them count once. Returns nothing that became free (see eligibility_write).
CREATE OR REPLACE FUNCTION statistics_write(changes jsonb) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO text_statistics AS t (
        partition, width_ms, since_ms, model, requests, tokens, samples, speed
    )
    SELECT partition, width_ms, since_ms, model, requests, tokens, samples, speed
    FROM jsonb_populate_recordset(NULL::text_statistics, changes -> 'text')
    ON CONFLICT (width_ms, since_ms, model, partition) DO UPDATE SET
        requests = t.requests + excluded.requests, tokens = t.tokens + excluded.tokens,
        samples = t.samples + excluded.samples, speed = t.speed + excluded.speed;
    INSERT INTO worker_fulfilments AS w (worker_id, partition, fulfilments, implausible)
    SELECT worker_id, partition, fulfilments, implausible
    FROM jsonb_populate_recordset(NULL::worker_fulfilments, changes -> 'workers')
    ON CONFLICT (worker_id, partition) DO UPDATE SET
        fulfilments = w.fulfilments + excluded.fulfilments,
        implausible = w.implausible + excluded.implausible;
    DELETE FROM text_statistics t
    USING jsonb_to_recordset(changes -> 'past') AS p (partition int, width_ms bigint, until_ms bigint)
    WHERE t.partition = p.partition AND t.width_ms = p.width_ms AND t.since_ms < p.until_ms;
    RETURN NULL;
END
$$;
