-- +goose Up
-- When a drain ended what the instance's modules run; NULL: they run. An uncordon brings them back.
ALTER TABLE instances ADD COLUMN drained_at TEXT;

-- What the task controller looks for, over and over.
CREATE INDEX tasks_open ON tasks (command) WHERE status IN ('pending', 'running');
