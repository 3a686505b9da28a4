-- +goose Up
-- The place of a version in the line of those that have been current: a rollback goes to the one before. NULL: never, or
-- only before the line was kept; the current one of these is the line's first.
ALTER TABLE module_versions ADD COLUMN current_order INTEGER;
