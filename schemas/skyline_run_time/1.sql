-- Skyline run time report, revision 1. Frozen: never edited after release.

-- An invocation of an operation in a training iteration.
--   id: number of the entry, in forward order
--   operation_name: name of the call in PyTorch, such as conv2d
--   forward_ms: time of the forward call, milliseconds
--   backward_ms: time of the backward pass, milliseconds; NULL: not part of the backward pass
CREATE TABLE run_time_entries (
  id INTEGER PRIMARY KEY,
  operation_name TEXT NOT NULL,
  forward_ms REAL NOT NULL,
  backward_ms REAL
);

-- A frame of an entry's call stack, in a file of the user's project.
--   ordering: 0 is the frame closest to the operation
--   file_path: relative to the project root
--   line_number: line in the file, from 1
--   entry_id: run_time_entries.id
CREATE TABLE stack_frames (
  ordering INTEGER NOT NULL,
  file_path TEXT NOT NULL,
  line_number INTEGER NOT NULL,
  entry_id INTEGER NOT NULL,
  PRIMARY KEY (entry_id, ordering)
);
PRAGMA user_version = 1;
