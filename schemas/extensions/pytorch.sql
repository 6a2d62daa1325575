-- What torch_npu adds to an msprof database: plain columns, no key and no index.
-- The times of PYTORCH_API are decimal nanoseconds as TEXT.
CREATE TABLE PYTORCH_API (
  startNs TEXT,
  endNs TEXT,
  globalTid INTEGER,
  connectionId INTEGER,
  name INTEGER,
  sequenceNumber INTEGER,
  fwdThreadId INTEGER,
  inputDtypes INTEGER,
  inputShapes INTEGER,
  callchainId INTEGER,
  type INTEGER
);
CREATE TABLE CONNECTION_IDS (
  id INTEGER,
  connectionId INTEGER
);
CREATE TABLE PYTORCH_CALLCHAINS (
  id INTEGER,
  stack INTEGER,
  stackDepth INTEGER
);
CREATE TABLE STEP_TIME (
  id INTEGER,
  startNs INTEGER,
  endNs INTEGER
);
CREATE TABLE MEMORY_RECORD (
  component INTEGER,
  timestamp INTEGER,
  totalAllocated INTEGER,
  totalReserved INTEGER,
  totalActive INTEGER,
  streamPtr INTEGER,
  deviceId INTEGER
);
CREATE TABLE OP_MEMORY (
  name INTEGER,
  size INTEGER,
  allocationTime INTEGER,
  releaseTime INTEGER,
  activeReleaseTime INTEGER,
  duration INTEGER,
  activeDuration INTEGER,
  allocationTotalAllocated INTEGER,
  allocationTotalReserved INTEGER,
  allocationTotalActive INTEGER,
  releaseTotalAllocated INTEGER,
  releaseTotalReserved INTEGER,
  releaseTotalActive INTEGER,
  streamPtr INTEGER,
  deviceId INTEGER
);
CREATE TABLE GC_RECORD (
  startNs INTEGER,
  endNs INTEGER,
  globalTid INTEGER
);
