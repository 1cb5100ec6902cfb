-- How far each projection has come in each partition's log, and how far it has announced what it
-- wrote. A projection's name is permanent.
CREATE TABLE checkpoints (
    name text NOT NULL,
    partition int NOT NULL,
    position_ms bigint NOT NULL DEFAULT 0,
    position_seq bigint NOT NULL DEFAULT 0,
    signalled_ms bigint NOT NULL DEFAULT 0,
    signalled_seq bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (name, partition)
) WITH (
    fillfactor = 50,  -- rewritten by every batch: leave room on the page for its own new versions
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200
);

-- Move a checkpoint if it still stands where the caller read it; raise HC001 where it does not.
-- Rows and checkpoint are written by one statement, so each event takes effect once.
CREATE FUNCTION move_checkpoint(
    projection text, of_partition int,
    before_ms bigint, before_seq bigint,
    after_ms bigint, after_seq bigint,
    announced_ms bigint, announced_seq bigint
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE checkpoints
    SET position_ms = after_ms, position_seq = after_seq,
        signalled_ms = announced_ms, signalled_seq = announced_seq
    WHERE name = projection AND partition = of_partition
        AND position_ms = before_ms AND position_seq = before_seq;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'checkpoint % of partition % is not at %-%',
            projection, of_partition, before_ms, before_seq USING ERRCODE = 'HC001';
    END IF;
END
$$;
