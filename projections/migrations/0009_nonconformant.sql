-- Jobs of a worker that ended on a reply that broke its request's contract.
ALTER TABLE workers ADD COLUMN nonconformant_replies int NOT NULL DEFAULT 0;

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
