-- Summary of a cluster's run, revision 1. Frozen: never edited after release.
-- Durations are in ns. Points in time are in ns by the rank's clock; adding RANK.clock_offset_ns
-- converts them to the common clock. Rates are in GB/s (1e9 bytes). Lists and mappings are JSON. The
-- partials (one file per rank) contain the individual collectives and transfers.

-- A fact about the whole run, such as its world size.
--   name: name of the fact
--   value: the fact; lists and mappings are JSON
CREATE TABLE META_DATA (
  name TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
);

-- A rank of the run, whether or not it was read.
--   rank: global rank
--   host: host name
--   device_id: device number on its host
--   device_name: model of the device
--   vendor: nvidia, huawei, amd; NULL: unknown
--   file: its recording
--   partial: path of its partial, a file in partials/
--   status: read; partly: read, but incomplete; failed: recording unreadable; absent: no
--     recording
--   why: reason if status is not read
--   tp: position in its tensor-parallel group
--   dp: position in its data-parallel group
--   pp: pipeline stage
--   ep: position in its expert-parallel group
--   cp: position in its context-parallel group
--   clock_offset_ns: offset to add to times of this rank to get the common clock of its island;
--     NULL: no events in common with another rank
--   clock_error_ns: standard error of clock_offset_ns
--   clock_island: ranks of one island have a common clock; offsets between islands are unknown
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

-- A communicator.
--   id: number from 0, in order of ranks
--   kind: tp, dp, pp, ep, cp, world or other
--   names: JSON list of its recorded names
--   ranks: JSON list of global ranks, in the group's order
--   size: number of ranks
--   hosts: number of hosts; NULL: unknown
CREATE TABLE "GROUP" (
  id INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  names TEXT NOT NULL,
  ranks TEXT NOT NULL,
  size INTEGER NOT NULL,
  hosts INTEGER
);

-- Time of one step of one rank, by part.
--   step: recorded step number
--   rank: RANK.rank
--   start_ns: start, by the rank's clock
--   end_ns: end, by the rank's clock
--   compute_ns: union of kernel intervals
--   communication_ns: union of collectives and transfers
--   exposed_communication_ns: the part that no kernel covers
--   wait_ns: sum of waits for other ranks in collectives and transfers; NULL: none matched
--   exposed_wait_ns: time with such waits and without kernels, part of exposed_communication_ns
--   setup_ns: setup time of collectives, neither wait nor transfer; NPUs only
--   bubble_ns: part of exposed_wait_ns spent waiting for another pipeline stage
--   input_late_ns: device idle while the host waits for input; NULL: no data loader recorded
--   idle_ns: neither kernels nor communication
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

-- Collectives of one group, kind and size in one step.
--   id: row number from 0
--   group_id: GROUP.id
--   kind: all_reduce, all_gather, ... one name over all vendors
--   step: STEP_RANK.step; NULL: outside steps
--   bytes: bytes per rank; NULL: unknown
--   n: number of collectives
--   complete_n: number of collectives recorded on all members
--   transfer_ns: sum of transfer times
--   wait_ns: sum of waits for the last member, over all members
--   setup_ns: sum of setup times
--   transfer_p50_ns: median transfer time
--   transfer_p99_ns: 99th percentile of transfer times
--   bus_gb_per_s: bus bandwidth at the median: 2(n-1)/n of the bytes for all_reduce, (n-1)/n for
--     gather, scatter and all_to_all
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

-- Wait time that a rank causes for others, and evidence for the reasons.
--   rank: RANK.rank
--   caused_wait_ns: wait of other ranks in complete collectives in which this rank was last
--   times: number of complete collectives in which it was last
--   work_ns: sum of its kernel times in the compared steps
--   stage_work_ns: median of the kernel times of the other ranks in its pipeline stage
--   work_ratio: its kernel time over the median of the ranks in its pipeline stage
--   host_gap_ns: sum of its idle times without input waits
--   stage_host_gap_ns: typical gap between kernels times its number of kernels
--   input_late_ns: sum of input waits in excess of those of other ranks
--   saved_ns_per_step: estimated saving per step if its problem is fixed; NULL: no finding
--   cause: kind of its most expensive finding; NULL: none
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

-- Data moved from one rank to another.
--   src_rank: RANK.rank of the sender
--   dst_rank: RANK.rank of the receiver
--   kind: p2p: sends and receives; collective: parts of collectives
--   across_hosts: 1: between hosts, 0: within one host
--   n: number of transfers
--   bytes: sum of bytes
--   transfer_ns: sum of transfer times
--   wait_ns: sum of waits of the receiver for the sender; p2p only
--   gb_per_s_p50: median rate
--   gb_per_s_p99: rate that 99 % of the transfers exceed
--   like_gb_per_s: median of gb_per_s_p50 over links of the same kind with similar transfer sizes
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

-- Kernels of one kind on one rank, in the compared steps.
--   rank: RANK.rank
--   name: operator type (NPU) or kernel name (GPU)
--   module: nn.Module that it belongs to; empty: unknown
--   n: number of kernels
--   total_ns: sum of durations
--   min_ns: shortest duration
--   max_ns: longest duration
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

-- A problem that costs time, most expensive first; healthy runs have no findings.
--   place: 1 is the most expensive
--   kind: slow_rank, slow_host, slow_link, late_input, ...
--   ranks: JSON list of the ranks that cause it
--   hosts: JSON list of their hosts
--   links: JSON list of [src, dst]
--   steps: JSON list of the affected steps
--   cost_ms_per_step: estimated saving per step, ms
--   figures: JSON mapping of the evidence
--   text: the finding in one sentence
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
