-- What uprof adds to a report of any family, each table only where it has rows.
CREATE TABLE "UPROF_ANOMALIES" (
  name VARCHAR NOT NULL,
  count INTEGER NOT NULL,
  detail VARCHAR,
  PRIMARY KEY (name)
);
CREATE TABLE "UPROF_COVERAGE" (
  kind VARCHAR NOT NULL,
  unit VARCHAR NOT NULL,
  total INTEGER NOT NULL,
  decoded INTEGER NOT NULL,
  skipped INTEGER NOT NULL,
  without_table INTEGER NOT NULL,
  PRIMARY KEY (kind, unit)
);
CREATE TABLE "UPROF_GAPS" (
  entry_id INTEGER NOT NULL,
  file_path VARCHAR NOT NULL,
  first_line INTEGER NOT NULL,
  last_line INTEGER NOT NULL,
  PRIMARY KEY (entry_id)
);
CREATE TABLE "UPROF_GAP_SAMPLES" (
  entry_id INTEGER NOT NULL,
  iteration INTEGER NOT NULL,
  gap_ms DOUBLE NOT NULL,
  PRIMARY KEY (entry_id, iteration)
);
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
CREATE TABLE "UPROF_ITERATION_PARTS" (
  iteration INTEGER NOT NULL,
  part VARCHAR NOT NULL,
  ms DOUBLE NOT NULL,
  PRIMARY KEY (iteration, part)
);
CREATE TABLE "UPROF_MODULES" (
  kind VARCHAR NOT NULL,
  entry_id INTEGER NOT NULL,
  module_path VARCHAR NOT NULL,
  module_class VARCHAR,
  PRIMARY KEY (kind, entry_id)
);
CREATE TABLE "UPROF_RECOMPUTATION" (
  entry_id INTEGER NOT NULL,
  iteration INTEGER NOT NULL,
  recomputed_ms DOUBLE NOT NULL,
  PRIMARY KEY (entry_id, iteration)
);
CREATE TABLE "UPROF_REGIONS" (
  region_id INTEGER NOT NULL,
  name VARCHAR NOT NULL,
  around INTEGER,
  peak_usage_bytes INTEGER,
  PRIMARY KEY (region_id)
);
CREATE TABLE "UPROF_REGION_COUNTS" (
  region_id INTEGER NOT NULL,
  iteration INTEGER NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (region_id, iteration)
);
CREATE TABLE "UPROF_REGION_ENTRIES" (
  kind VARCHAR NOT NULL,
  entry_id INTEGER NOT NULL,
  region_id INTEGER NOT NULL,
  PRIMARY KEY (kind, entry_id)
);
CREATE TABLE "UPROF_RUN" (
  name VARCHAR NOT NULL,
  value VARCHAR,
  PRIMARY KEY (name)
);
CREATE TABLE "UPROF_RUN_TIME_SAMPLES" (
  entry_id INTEGER NOT NULL,
  iteration INTEGER NOT NULL,
  forward_ms DOUBLE NOT NULL,
  backward_ms DOUBLE,
  PRIMARY KEY (entry_id, iteration)
);
