-- Tables that uprof adds to a report of any family; each table exists only if it has rows.

-- Data that was skipped, truncated, unmatched, unknown or could not be measured.
--   name: kind of anomaly, snake_case
--   count: number of occurrences
--   detail: description of the first occurrence
CREATE TABLE "UPROF_ANOMALIES" (
  name VARCHAR NOT NULL,
  count INTEGER NOT NULL,
  detail VARCHAR,
  PRIMARY KEY (name)
);

-- Size of one kind of data in a converted recording; the last three columns add up to it.
--   kind: kind of file, table or event
--   unit: bytes, rows or events
--   total: size in the recording, decompressed
--   decoded: decoded to rows, names or times of this database
--   skipped: damaged, inconsistent or not evaluated
--   without_table: of a kind that no decoder reads
CREATE TABLE "UPROF_COVERAGE" (
  kind VARCHAR NOT NULL,
  unit VARCHAR NOT NULL,
  total INTEGER NOT NULL,
  decoded INTEGER NOT NULL,
  skipped INTEGER NOT NULL,
  without_table INTEGER NOT NULL,
  PRIMARY KEY (kind, unit)
);

-- Time before an operation in which no operation ran, with the lines that may have spent it.
--   entry_id: run_time_entries.id of the operation that follows
--   file_path: relative to the project root
--   first_line: first line that may have spent it, from 1
--   last_line: last such line
CREATE TABLE "UPROF_GAPS" (
  entry_id INTEGER NOT NULL,
  file_path VARCHAR NOT NULL,
  first_line INTEGER NOT NULL,
  last_line INTEGER NOT NULL,
  PRIMARY KEY (entry_id)
);

-- Duration of a gap in one iteration.
--   entry_id: UPROF_GAPS.entry_id
--   iteration: UPROF_ITERATIONS.iteration
--   gap_ms: time between the two operations, ms
CREATE TABLE "UPROF_GAP_SAMPLES" (
  entry_id INTEGER NOT NULL,
  iteration INTEGER NOT NULL,
  gap_ms DOUBLE NOT NULL,
  PRIMARY KEY (entry_id, iteration)
);

-- A measured iteration of a Skyline run.
--   iteration: number from 0, warm-up excluded
--   total_ms: wall or device time of the whole iteration, ms
--   forward_ms: forward time: outside backward pass and optimizer, ms
--   backward_ms: backward time: inside the autograd engine, ms
--   peak_usage_bytes: peak memory of this iteration, bytes
--   matched: 1: same operation sequence as the report's entries; 0: differs, not averaged
--   waited_ms: part of total_ms in which the program's thread waited for a CPU, ms; NULL:
--     unknown, or total_ms is device time
--   forward_waited_ms: the same part of forward_ms, ms
--   backward_waited_ms: the same part of backward_ms, ms
--   cpu_ms: CPU time of all threads of the process, ms; NULL: unknown, or total_ms is device time
--   forward_cpu_ms: the same within forward_ms, ms
--   backward_cpu_ms: the same within backward_ms, ms
CREATE TABLE "UPROF_ITERATIONS" (
  iteration INTEGER NOT NULL,
  total_ms DOUBLE NOT NULL,
  forward_ms DOUBLE,
  backward_ms DOUBLE,
  peak_usage_bytes INTEGER,
  matched INTEGER NOT NULL,
  waited_ms DOUBLE,
  forward_waited_ms DOUBLE,
  backward_waited_ms DOUBLE,
  cpu_ms DOUBLE,
  forward_cpu_ms DOUBLE,
  backward_cpu_ms DOUBLE,
  PRIMARY KEY (iteration)
);

-- Time of a part of an iteration outside its forward and backward passes.
--   iteration: UPROF_ITERATIONS.iteration
--   part: optimizer, data_loading and others
--   ms: time of the part without waiting for a CPU, ms
CREATE TABLE "UPROF_ITERATION_PARTS" (
  iteration INTEGER NOT NULL,
  part VARCHAR NOT NULL,
  ms DOUBLE NOT NULL,
  PRIMARY KEY (iteration, part)
);

-- Qualified nn.Module path of an entry, such as `encoder.layers.0.linear1`.
--   kind: operation, weight or activation
--   entry_id: id in the entry table of this kind
--   module_path: as in named_modules(); '' is the root model
--   module_class: class name of that module
CREATE TABLE "UPROF_MODULES" (
  kind VARCHAR NOT NULL,
  entry_id INTEGER NOT NULL,
  module_path VARCHAR NOT NULL,
  module_class VARCHAR,
  PRIMARY KEY (kind, entry_id)
);

-- Time of recomputing an operation (activation checkpointing), in one iteration.
--   entry_id: run_time_entries.id
--   iteration: UPROF_ITERATIONS.iteration
--   recomputed_ms: recomputation time of this call in the backward pass, ms; in no other column
CREATE TABLE "UPROF_RECOMPUTATION" (
  entry_id INTEGER NOT NULL,
  iteration INTEGER NOT NULL,
  recomputed_ms DOUBLE NOT NULL,
  PRIMARY KEY (entry_id, iteration)
);

-- A region marked by the program: record_function or an NVTX range.
--   region_id: number from 1
--   name: name given by the program
--   around: UPROF_REGIONS.region_id of the enclosing region; NULL: none
--   peak_usage_bytes: peak allocation while it was open, bytes; NULL: not measured
CREATE TABLE "UPROF_REGIONS" (
  region_id INTEGER NOT NULL,
  name VARCHAR NOT NULL,
  around INTEGER,
  peak_usage_bytes INTEGER,
  PRIMARY KEY (region_id)
);

-- Number of times that a region was opened in one iteration; no row if never.
--   region_id: UPROF_REGIONS.region_id
--   iteration: UPROF_ITERATIONS.iteration
--   count: number of occurrences
CREATE TABLE "UPROF_REGION_COUNTS" (
  region_id INTEGER NOT NULL,
  iteration INTEGER NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (region_id, iteration)
);

-- The innermost region around an operation and its backward pass.
--   kind: operation or activation
--   entry_id: id in the entry table of this kind
--   region_id: UPROF_REGIONS.region_id
CREATE TABLE "UPROF_REGION_ENTRIES" (
  kind VARCHAR NOT NULL,
  entry_id INTEGER NOT NULL,
  region_id INTEGER NOT NULL,
  PRIMARY KEY (kind, entry_id)
);

-- A fact about the origin of the report (provenance).
--   name: name of the fact
--   value: the fact; lists and mappings are JSON
CREATE TABLE "UPROF_RUN" (
  name VARCHAR NOT NULL,
  value VARCHAR,
  PRIMARY KEY (name)
);

-- Time of an operation in one iteration; run_time_entries has the median of these samples.
--   entry_id: run_time_entries.id
--   iteration: UPROF_ITERATIONS.iteration
--   forward_ms: forward time of this call, ms
--   backward_ms: backward time of this call, ms, or NULL
CREATE TABLE "UPROF_RUN_TIME_SAMPLES" (
  entry_id INTEGER NOT NULL,
  iteration INTEGER NOT NULL,
  forward_ms DOUBLE NOT NULL,
  backward_ms DOUBLE,
  PRIMARY KEY (entry_id, iteration)
);
