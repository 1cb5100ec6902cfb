-- Whether a request's messages are an object in the store, and how a worker got its images or them.
ALTER TABLE waiting_prompts ADD COLUMN chat_messages_offloaded boolean NOT NULL DEFAULT false;
ALTER TABLE processing_gens ADD COLUMN image_transport varchar(16);

-- Write the folded changes of one batch. Each row is named at most once in all of `changes`.
-- Returns nothing that became free (see eligibility_write).
CREATE OR REPLACE FUNCTION status_write(changes jsonb) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    prompts jsonb := changes -> 'waiting_prompts';
    gens jsonb := changes -> 'processing_gens';
BEGIN
    IF prompts ? 'insert' THEN
        INSERT INTO waiting_prompts (
            id, partition, user_id, is_chat, jobs, max_length, max_context_length, models,
            chat_required_features, chat_conformance, chat_tools_temperature, images, only_workers,
            ignore_workers, trusted_workers, validated_backends, slow_workers, stream, ttl,
            created_ms, touched_ms, cancelled, faulted, done, context_adjustments,
            chat_fault_rc, chat_fault_code, tax, chat_messages_offloaded
        )
        SELECT
            id, partition, user_id, is_chat, jobs, max_length, max_context_length, models,
            chat_required_features, chat_conformance, chat_tools_temperature, images, only_workers,
            ignore_workers, trusted_workers, validated_backends, slow_workers, stream, ttl,
            created_ms, touched_ms, cancelled, faulted, done, context_adjustments,
            chat_fault_rc, chat_fault_code, tax, chat_messages_offloaded
        FROM jsonb_populate_recordset(NULL::waiting_prompts, prompts -> 'insert');
    END IF;
    IF prompts ? 'update' THEN
        UPDATE waiting_prompts w
        SET (touched_ms, cancelled, faulted, done, chat_fault_rc, chat_fault_code) = (
            SELECT
                n.touched_ms, n.cancelled, n.faulted, n.done, n.chat_fault_rc, n.chat_fault_code
            FROM jsonb_populate_record(w, c.change) n
        )
        FROM jsonb_array_elements(prompts -> 'update') AS c (change)
        WHERE w.id = (c.change ->> 'id')::uuid;
    END IF;
    IF prompts ? 'delete' THEN
        DELETE FROM waiting_prompts w
        USING jsonb_array_elements_text(prompts -> 'delete') AS c (id)
        WHERE w.id = c.id::uuid;
    END IF;
    IF gens ? 'insert' THEN
        INSERT INTO processing_gens (
            id, partition, wp_id, worker_id, worker_name, owner_id, model, assigned_model,
            assigned_max_context_length, assigned_max_length, job_ttl, created_ms, created_seq,
            state, cancelled, result_state, seed, finish_reason, native_finish_reason,
            prompt_tokens, completion_tokens, reasoning_tokens, charge_basis,
            settled_character_count, finished_ms, chat_refusal_rc, charge, image_transport
        )
        SELECT
            id, partition, wp_id, worker_id, worker_name, owner_id, model, assigned_model,
            assigned_max_context_length, assigned_max_length, job_ttl, created_ms, created_seq,
            state, cancelled, result_state, seed, finish_reason, native_finish_reason,
            prompt_tokens, completion_tokens, reasoning_tokens, charge_basis,
            settled_character_count, finished_ms, chat_refusal_rc, charge, image_transport
        FROM jsonb_populate_recordset(NULL::processing_gens, gens -> 'insert');
    END IF;
    IF gens ? 'update' THEN
        UPDATE processing_gens g
        SET (
            job_ttl, state, cancelled, result_state, seed, finish_reason, native_finish_reason,
            prompt_tokens, completion_tokens, reasoning_tokens, charge_basis,
            settled_character_count, finished_ms, chat_refusal_rc, charge
        ) = (
            SELECT
                n.job_ttl, n.state, n.cancelled, n.result_state, n.seed, n.finish_reason,
                n.native_finish_reason, n.prompt_tokens, n.completion_tokens, n.reasoning_tokens,
                n.charge_basis, n.settled_character_count, n.finished_ms, n.chat_refusal_rc, n.charge
            FROM jsonb_populate_record(g, c.change) n
        )
        FROM jsonb_array_elements(gens -> 'update') AS c (change)
        WHERE g.id = (c.change ->> 'id')::uuid;
    END IF;
    IF gens ? 'delete' THEN
        DELETE FROM processing_gens g
        USING jsonb_array_elements_text(gens -> 'delete') AS c (id)
        WHERE g.id = c.id::uuid;
    END IF;
    RETURN NULL;
END
$$;
