-- Skyline memory report, revision 1. Frozen: never edited after release.

-- A parameter of the model; a tied parameter appears once.
--   id: number of the entry
--   name: attribute name of the parameter in its module
--   size_bytes: bytes of the parameter, not rounded
--   grad_size_bytes: bytes of its gradient; 0: no gradient
CREATE TABLE weight_entries (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  size_bytes INTEGER NOT NULL,
  grad_size_bytes INTEGER NOT NULL
);

-- Memory that an operation saves for the backward pass.
--   id: number of the entry
--   operation_name: name of the operation, as in the run times
--   size_bytes: bytes first saved by this operation
CREATE TABLE activation_entries (
  id INTEGER PRIMARY KEY,
  operation_name TEXT NOT NULL,
  size_bytes INTEGER NOT NULL
);

-- Kinds of memory entries: 1 Weight, 2 Activation.
--   entry_type: 1 or 2
--   name: Weight or Activation
CREATE TABLE entry_types (
  entry_type INTEGER PRIMARY KEY,
  name TEXT NOT NULL
);

-- Connects a weight or activation entry to its stack frames.
--   correlation_id: key in stack_frames
--   entry_id: id in the table given by entry_type
--   entry_type: 1: weight_entries, 2: activation_entries
CREATE TABLE stack_correlation (
  correlation_id INTEGER PRIMARY KEY,
  entry_id INTEGER NOT NULL,
  entry_type INTEGER NOT NULL,
  UNIQUE (correlation_id, entry_id)
);

-- A frame of an entry's call stack, in a file of the user's project.
--   correlation_id: stack_correlation.correlation_id
--   ordering: 0 is the frame closest to the entry
--   file_path: relative to the project root
--   line_number: line in the file, from 1
CREATE TABLE stack_frames (
  correlation_id INTEGER NOT NULL,
  ordering INTEGER NOT NULL,
  file_path TEXT NOT NULL,
  line_number INTEGER NOT NULL,
  PRIMARY KEY (correlation_id, ordering)
);

-- A size that does not belong to an entry; the only key is peak_usage_bytes.
--   key: name of the size
--   size_bytes: bytes, not rounded
CREATE TABLE misc_sizes (
  key TEXT PRIMARY KEY,
  size_bytes INT NOT NULL
);
CREATE UNIQUE INDEX entry_type_and_id ON stack_correlation(entry_type, entry_id);
INSERT INTO entry_types (entry_type, name) VALUES (1, 'Weight');
INSERT INTO entry_types (entry_type, name) VALUES (2, 'Activation');
PRAGMA user_version = 1;
