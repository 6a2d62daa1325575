-- Steps of one rank, written while the program runs, revision 1. Frozen: never edited after release.
CREATE TABLE STEP (
  step INTEGER PRIMARY KEY,
  start_ns INTEGER NOT NULL,
  length_ns INTEGER NOT NULL,
  data_ns INTEGER NOT NULL,
  forward_ns INTEGER,
  backward_ns INTEGER,
  optimizer_ns INTEGER,
  wait_ns INTEGER NOT NULL,
  gc_ns INTEGER NOT NULL,
  device_ns INTEGER,
  allocated_bytes INTEGER,
  reserved_bytes INTEGER,
  samples INTEGER,
  event INTEGER
);
CREATE TABLE EVENT (
  id INTEGER PRIMARY KEY,
  time_ns INTEGER NOT NULL,
  step INTEGER NOT NULL,
  kind TEXT NOT NULL,
  text TEXT NOT NULL,
  capture TEXT,
  status TEXT,
  finding TEXT
);
PRAGMA user_version = 1;
