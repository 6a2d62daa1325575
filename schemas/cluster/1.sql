-- Summary of a cluster's run, revision 1. Frozen: never edited after release.
CREATE TABLE META_DATA (
  name TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
);
CREATE TABLE RANK (
  rank INTEGER PRIMARY KEY,
  host TEXT,
  device_id INTEGER,
  device_name TEXT,
  vendor TEXT,
  file TEXT,
  partial TEXT,
  status TEXT NOT NULL,
  why TEXT,
  tp INTEGER,
  dp INTEGER,
  pp INTEGER,
  ep INTEGER,
  cp INTEGER,
  clock_offset_ns INTEGER,
  clock_error_ns INTEGER,
  clock_island INTEGER
);
CREATE TABLE "GROUP" (
  id INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  names TEXT NOT NULL,
  ranks TEXT NOT NULL,
  size INTEGER NOT NULL,
  hosts INTEGER
);
CREATE TABLE STEP_RANK (
  step INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  start_ns INTEGER NOT NULL,
  end_ns INTEGER NOT NULL,
  compute_ns INTEGER NOT NULL,
  communication_ns INTEGER NOT NULL,
  exposed_communication_ns INTEGER NOT NULL,
  wait_ns INTEGER,
  exposed_wait_ns INTEGER,
  setup_ns INTEGER,
  bubble_ns INTEGER,
  input_late_ns INTEGER,
  idle_ns INTEGER NOT NULL,
  PRIMARY KEY (step, rank)
);
CREATE TABLE COLLECTIVE (
  id INTEGER PRIMARY KEY,
  group_id INTEGER NOT NULL,
  kind TEXT NOT NULL,
  step INTEGER,
  bytes INTEGER,
  n INTEGER NOT NULL,
  complete_n INTEGER NOT NULL,
  transfer_ns INTEGER NOT NULL,
  wait_ns INTEGER NOT NULL,
  setup_ns INTEGER NOT NULL,
  transfer_p50_ns INTEGER,
  transfer_p99_ns INTEGER,
  bus_gb_per_s REAL
);
CREATE TABLE BLAME (
  rank INTEGER PRIMARY KEY,
  caused_wait_ns INTEGER NOT NULL,
  times INTEGER NOT NULL,
  work_ns INTEGER NOT NULL,
  stage_work_ns INTEGER,
  work_ratio REAL,
  host_gap_ns INTEGER,
  stage_host_gap_ns INTEGER,
  input_late_ns INTEGER,
  saved_ns_per_step REAL,
  cause TEXT
);
CREATE TABLE LINK (
  src_rank INTEGER NOT NULL,
  dst_rank INTEGER NOT NULL,
  kind TEXT NOT NULL,
  across_hosts INTEGER,
  n INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  transfer_ns INTEGER NOT NULL,
  wait_ns INTEGER,
  gb_per_s_p50 REAL,
  gb_per_s_p99 REAL,
  like_gb_per_s REAL,
  PRIMARY KEY (src_rank, dst_rank, kind)
);
CREATE TABLE OPERATION_RANK (
  rank INTEGER NOT NULL,
  name TEXT NOT NULL,
  module TEXT NOT NULL,
  n INTEGER NOT NULL,
  total_ns INTEGER NOT NULL,
  min_ns INTEGER NOT NULL,
  max_ns INTEGER NOT NULL,
  PRIMARY KEY (rank, name, module)
);
CREATE TABLE FINDING (
  place INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  ranks TEXT NOT NULL,
  hosts TEXT NOT NULL,
  links TEXT NOT NULL,
  steps TEXT NOT NULL,
  cost_ms_per_step REAL NOT NULL,
  figures TEXT NOT NULL,
  text TEXT NOT NULL
);
PRAGMA user_version = 1;
