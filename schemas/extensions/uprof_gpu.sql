-- What a recorded trace says and msprof has no place for; each table only where it has rows.
CREATE TABLE "UPROF_GPU_TASKS" (
  "globalTaskId" INTEGER NOT NULL,
  name INTEGER NOT NULL,
  operation INTEGER NOT NULL,
  "externalId" INTEGER,
  "contextId" INTEGER,
  "sizeBytes" INTEGER,
  "bandwidthGBps" DOUBLE,
  "gridDim" INTEGER NOT NULL,
  "blockDim" INTEGER NOT NULL,
  "registersPerThread" INTEGER,
  "sharedMemoryBytes" INTEGER,
  "blocksPerSm" DOUBLE,
  "warpsPerSm" DOUBLE,
  "occupancyPercent" DOUBLE,
  "queuedNs" INTEGER,
  "graphId" INTEGER,
  "graphNodeId" INTEGER,
  PRIMARY KEY ("globalTaskId")
);
CREATE TABLE "UPROF_COLLECTIVES" (
  "opId" INTEGER NOT NULL,
  "groupDescription" INTEGER NOT NULL,
  "groupSize" INTEGER,
  "groupRanks" INTEGER NOT NULL,
  "dataType" INTEGER NOT NULL,
  "inElements" INTEGER,
  "outElements" INTEGER,
  "inSplit" INTEGER NOT NULL,
  "outSplit" INTEGER NOT NULL,
  sequence INTEGER,
  PRIMARY KEY ("opId")
);
CREATE TABLE "UPROF_OPERATION_INPUTS" (
  "startNs" INTEGER NOT NULL,
  "globalTid" INTEGER NOT NULL,
  name INTEGER NOT NULL,
  "externalId" INTEGER,
  "inputStrides" INTEGER NOT NULL,
  "concreteInputs" INTEGER NOT NULL,
  "moduleHierarchy" INTEGER NOT NULL
);
CREATE TABLE "UPROF_GPU_ANNOTATIONS" (
  "startNs" INTEGER NOT NULL,
  "endNs" INTEGER NOT NULL,
  "deviceId" INTEGER NOT NULL,
  "streamId" INTEGER NOT NULL,
  name INTEGER NOT NULL,
  "externalId" INTEGER
);
CREATE TABLE "UPROF_GPU_SYNCS" (
  "startNs" INTEGER NOT NULL,
  "endNs" INTEGER NOT NULL,
  "deviceId" INTEGER NOT NULL,
  "streamId" INTEGER,
  "contextId" INTEGER,
  kind INTEGER NOT NULL,
  "correlationId" INTEGER,
  "waitStream" INTEGER,
  "waitEvent" INTEGER,
  "waitRecord" INTEGER
);
CREATE TABLE "UPROF_PYTHON_FRAMES" (
  "startNs" INTEGER NOT NULL,
  "endNs" INTEGER NOT NULL,
  "globalTid" INTEGER NOT NULL,
  name INTEGER NOT NULL
);
CREATE TABLE "UPROF_THREADS" (
  "globalTid" INTEGER NOT NULL,
  process VARCHAR NOT NULL,
  thread VARCHAR NOT NULL,
  "processName" VARCHAR,
  "threadName" VARCHAR,
  PRIMARY KEY ("globalTid")
);
CREATE TABLE "UPROF_GPU_DEVICES" (
  "deviceId" INTEGER NOT NULL,
  name VARCHAR NOT NULL,
  value VARCHAR,
  PRIMARY KEY ("deviceId", name)
);
CREATE TABLE "UPROF_TRACE_EVENTS" (
  "startNs" INTEGER NOT NULL,
  "endNs" INTEGER,
  category INTEGER NOT NULL,
  name INTEGER NOT NULL,
  process VARCHAR NOT NULL,
  thread VARCHAR NOT NULL,
  args VARCHAR
);
CREATE TABLE "UPROF_GPU_METRICS" (
  "timestampNs" INTEGER NOT NULL,
  "deviceId" INTEGER NOT NULL,
  name INTEGER NOT NULL,
  value DOUBLE
);
CREATE TABLE "UPROF_MEMORY_BLOCKS" (
  "deviceId" INTEGER NOT NULL,
  address INTEGER NOT NULL,
  "sizeBytes" INTEGER NOT NULL,
  "allocationNs" INTEGER,
  "releaseNs" INTEGER,
  "callchainId" INTEGER
);
CREATE TABLE "UPROF_MEMORY_SEGMENTS" (
  "deviceId" INTEGER NOT NULL,
  address INTEGER NOT NULL,
  "sizeBytes" INTEGER NOT NULL,
  "allocatedBytes" INTEGER NOT NULL,
  "freeBytes" INTEGER NOT NULL,
  "largestFreeBytes" INTEGER NOT NULL,
  blocks INTEGER NOT NULL,
  kind INTEGER NOT NULL,
  "streamPtr" INTEGER
);
CREATE TABLE "UPROF_TASK_PMU_INFO" (
  "globalTaskId" INTEGER NOT NULL,
  name INTEGER NOT NULL,
  value DOUBLE NOT NULL
);
