-- Steps of one rank, written while the program runs, revision 1. Frozen: never edited after release.
-- Points in time are Unix ns by the host's clock, durations are ns. NULL means unknown. A run of a
-- rank is one file, or several parts if it was rotated; UPROF_RUN has its rank and origin.

-- A complete step. Its parts, and other Python code, add up to its length on the CPU.
--   step: number from 0 in this run
--   start_ns: start, Unix ns
--   length_ns: duration on the host
--   data_ns: waiting for the DataLoader, on the host
--   forward_ns: forward pass: device time if the device has events, otherwise host time
--   backward_ns: backward pass, measured as forward_ns
--   optimizer_ns: optimizer, zero_grad and gradient clipping, measured as forward_ns
--   wait_ns: calls in which the host waits for values of tensors, such as `.item()`
--   gc_ns: Python's garbage collection; also contained in the parts that it interrupted
--   device_ns: device time of forward, backward and optimizer, which is at least the device's
--     busy time; on the CPU: CPU time of the process
--   allocated_bytes: allocated device memory at the end; on the CPU: resident memory of the
--     process
--   reserved_bytes: memory reserved by torch's allocator
--   samples: samples (or tokens) in the step: as passed to step(), otherwise the batch size of
--     the DataLoader
--   event: EVENT.id of the capture that slowed this step
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

-- Something that happened during the run; some events started a capture.
--   id: number from 0 in this run
--   time_ns: time, Unix ns
--   step: number of the step that ended
--   kind: slow_step, drift, memory_growth, request, signal, interval, healthy, lost or failed
--   text: what happened, in one sentence
--   capture: directory of the capture, relative to the directory of the file; NULL: none
--   status: recording, converting, ready or failed; NULL: no capture
--   finding: first finding of the capture, or why it failed
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
