-- What waits, one row for each model that a request accepts ('' for a text request that takes any).
-- A row lives while its request may still hand out jobs; `waiting` is how many do right now.
CREATE TABLE queue (
    request_id uuid NOT NULL,
    model text NOT NULL,
    partition int NOT NULL,
    rank bigint NOT NULL,  -- higher first; fixed at admission, since all requests age alike
    waiting int NOT NULL,
    chat boolean NOT NULL,
    max_length bigint NOT NULL,
    max_context_length bigint NOT NULL,
    features text[] NOT NULL,
    images boolean NOT NULL,
    tools_temperature double precision,
    only_workers text[] NOT NULL,
    ignore_workers text[] NOT NULL,
    trusted_workers boolean NOT NULL,
    validated_backends boolean NOT NULL,
    slow_workers boolean NOT NULL,
    class text NOT NULL,  -- what is needed, coarsely: projections.eligibility.requirement_class
    user_id bigint NOT NULL,
    holdoff_worker text NOT NULL,  -- faulted it last; not offered to it again until holdoff_ms
    holdoff_ms bigint NOT NULL,
    ttl int NOT NULL,
    created_ms bigint NOT NULL,
    touched_ms bigint NOT NULL,
    expires_ms bigint NOT NULL GENERATED ALWAYS AS (touched_ms + ttl::bigint * 1000) STORED,
    PRIMARY KEY (request_id, model)
) WITH (
    fillfactor = 70,
    -- Every assignment leaves a dead entry at the head of an index range, where every pop begins:
    -- sweep early, often and without pauses.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 500
);

-- One range for each model and requirement class, best rank first.
CREATE INDEX queue_ranges ON queue (chat, model, class, rank DESC, request_id DESC)
    WHERE waiting > 0;

-- The latest declaration of each worker, by the specification's column names.
CREATE TABLE workers (
    id uuid PRIMARY KEY,
    partition int NOT NULL,
    name text NOT NULL,
    user_id bigint NOT NULL,
    trusted boolean NOT NULL,
    models text[] NOT NULL,
    threads bigint NOT NULL,
    bridge_agent text NOT NULL,
    max_length bigint NOT NULL,
    max_context_length bigint NOT NULL,
    accepts_chat_jobs boolean NOT NULL,
    accepts_prompt_jobs boolean NOT NULL,
    chat_model_id text,
    chat_features text[] NOT NULL,
    chat_max_context_length bigint,
    chat_max_length bigint,
    chat_tools_max_temperature double precision,
    image_transports text[] NOT NULL,
    last_check_in_ms bigint NOT NULL,
    created_ms bigint NOT NULL,
    aborted_jobs int NOT NULL DEFAULT 0,
    uncompleted_jobs int NOT NULL DEFAULT 0,
    maintenance boolean NOT NULL DEFAULT false,
    paused boolean NOT NULL DEFAULT false
) WITH (fillfactor = 70);

CREATE INDEX workers_chat_model ON workers (chat_model_id) WHERE accepts_chat_jobs;

-- Write the folded changes of one batch. Each row is named at most once in all of `changes`.
-- Returns the models of jobs that waited before and came back to wait again.
CREATE FUNCTION eligibility_write(changes jsonb) RETURNS text[] LANGUAGE plpgsql AS $$
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
    IF changes ? 'workers' THEN
        INSERT INTO workers AS w (
            id, partition, name, user_id, trusted, models, threads, bridge_agent, max_length,
            max_context_length, accepts_chat_jobs, accepts_prompt_jobs, chat_model_id,
            chat_features, chat_max_context_length, chat_max_length, chat_tools_max_temperature,
            image_transports, last_check_in_ms, created_ms
        )
        SELECT
            id, partition, name, user_id, trusted, models, threads, bridge_agent, max_length,
            max_context_length, accepts_chat_jobs, accepts_prompt_jobs, chat_model_id,
            chat_features, chat_max_context_length, chat_max_length, chat_tools_max_temperature,
            image_transports, last_check_in_ms, created_ms
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
            last_check_in_ms = excluded.last_check_in_ms;
    END IF;
    -- The only change that is not absolute. The checkpoint in the same statement makes it count once.
    IF changes ? 'aborts' THEN
        UPDATE workers w
        SET aborted_jobs = w.aborted_jobs + c.value::int,
            uncompleted_jobs = w.uncompleted_jobs + c.value::int
        FROM jsonb_each_text(changes -> 'aborts') AS c
        WHERE w.id = c.key::uuid;
    END IF;
    RETURN came_back;
END
$$;
