-- Data of GPU traces that the msprof format cannot store; each table exists only if it has rows.
-- Columns documented as `string id` refer to STRING_IDS; times are Unix ns.

-- Name, launch and resources of one task of TASK.
--   globalTaskId: TASK.globalTaskId
--   name: string id: kernel, or kind of copy with its memories
--   operation: string id: framework operation, or N/A
--   externalId: as recorded
--   contextId: CUDA context
--   sizeBytes: number of bytes copied or set
--   bandwidthGBps: bandwidth of a copy or memset in 10**9 bytes per second, as recorded
--   gridDim: string id: blocks `x,y,z`, or N/A
--   blockDim: string id: threads `x,y,z`, or N/A
--   registersPerThread: count
--   sharedMemoryBytes: shared memory per block, bytes
--   blocksPerSm: blocks / processors
--   warpsPerSm: warps / processors
--   occupancyPercent: estimated achieved occupancy
--   queuedNs: as recorded; mostly 0
--   graphId: CUDA graph in which it ran
--   graphNodeId: node in that graph
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

-- Further parameters of one row of COMMUNICATION_OP.
--   opId: COMMUNICATION_OP.opId
--   groupDescription: string id, or N/A
--   groupSize: ranks in the group
--   groupRanks: string id: list of ranks, or N/A
--   dataType: string id: data type in PyTorch, or N/A
--   inElements: number of elements sent
--   outElements: number of elements received
--   inSplit: string id: elements per rank, or N/A
--   outSplit: string id: elements per rank, or N/A
--   sequence: number of the call within its group
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

-- Inputs of one operation of PYTORCH_API, found by start, thread and name.
--   startNs: PYTORCH_API.startNs
--   globalTid: PYTORCH_API.globalTid
--   name: PYTORCH_API.name
--   externalId: as recorded
--   inputStrides: string id, or N/A
--   concreteInputs: string id: JSON list of scalar inputs, or N/A
--   moduleHierarchy: string id, or N/A
CREATE TABLE "UPROF_OPERATION_INPUTS" (
  "startNs" INTEGER NOT NULL,
  "globalTid" INTEGER NOT NULL,
  name INTEGER NOT NULL,
  "externalId" INTEGER,
  "inputStrides" INTEGER NOT NULL,
  "concreteInputs" INTEGER NOT NULL,
  "moduleHierarchy" INTEGER NOT NULL
);

-- Device time of a user annotation on one stream.
--   startNs: Unix ns
--   endNs: Unix ns
--   deviceId: NPU_INFO.id
--   streamId: as TASK.streamId
--   name: string id
--   externalId: as recorded
CREATE TABLE "UPROF_GPU_ANNOTATIONS" (
  "startNs" INTEGER NOT NULL,
  "endNs" INTEGER NOT NULL,
  "deviceId" INTEGER NOT NULL,
  "streamId" INTEGER NOT NULL,
  name INTEGER NOT NULL,
  "externalId" INTEGER
);

-- A synchronization recorded by the device: a wait for a stream or an event.
--   startNs: Unix ns
--   endNs: Unix ns
--   deviceId: NPU_INFO.id
--   streamId: waiting stream; NULL: the whole device or the host
--   contextId: CUDA context
--   kind: string id: Stream Wait Event, Context Sync, ...
--   correlationId: CANN_API.connectionId of the call, if recorded
--   waitStream: stream that is waited for
--   waitEvent: CUDA event that is waited for
--   waitRecord: correlation id of the call that recorded the event
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

-- One call of a Python function of at least 0.5 ms; shorter calls are only in call chains.
--   startNs: Unix ns
--   endNs: Unix ns
--   globalTid: process id << 32 | thread id
--   name: string id: `file.py(line): function`
CREATE TABLE "UPROF_PYTHON_FRAMES" (
  "startNs" INTEGER NOT NULL,
  "endNs" INTEGER NOT NULL,
  "globalTid" INTEGER NOT NULL,
  name INTEGER NOT NULL
);

-- A recorded host thread.
--   globalTid: process id << 32 | thread id
--   process: process id as recorded
--   thread: thread id as recorded
--   processName: as recorded
--   threadName: as recorded
CREATE TABLE "UPROF_THREADS" (
  "globalTid" INTEGER NOT NULL,
  process VARCHAR NOT NULL,
  thread VARCHAR NOT NULL,
  "processName" VARCHAR,
  "threadName" VARCHAR,
  PRIMARY KEY ("globalTid")
);

-- A property of a device on the recorded host, whether or not the device was used.
--   deviceId: as NPU_INFO.id
--   name: property, such as totalGlobalMem
--   value: as recorded; lists and mappings are JSON
CREATE TABLE "UPROF_GPU_DEVICES" (
  "deviceId" INTEGER NOT NULL,
  name VARCHAR NOT NULL,
  value VARCHAR,
  PRIMARY KEY ("deviceId", name)
);

-- A recorded event that no other table can store.
--   startNs: Unix ns
--   endNs: Unix ns; NULL: an instant
--   category: string id: category as recorded
--   name: string id
--   process: process id as recorded, or a device
--   thread: thread id as recorded, or a stream
--   args: JSON object
CREATE TABLE "UPROF_TRACE_EVENTS" (
  "startNs" INTEGER NOT NULL,
  "endNs" INTEGER,
  category INTEGER NOT NULL,
  name INTEGER NOT NULL,
  process VARCHAR NOT NULL,
  thread VARCHAR NOT NULL,
  args VARCHAR
);

-- A sample of a device counter, such as Nsight Systems' GPU metrics.
--   timestampNs: Unix ns
--   deviceId: as NPU_INFO.id
--   name: string id: the counter, with its unit as recorded
--   value: as recorded
CREATE TABLE "UPROF_GPU_METRICS" (
  "timestampNs" INTEGER NOT NULL,
  "deviceId" INTEGER NOT NULL,
  name INTEGER NOT NULL,
  value DOUBLE
);

-- Address and origin of a row of OP_MEMORY that comes from an allocator snapshot.
--   deviceId: as NPU_INFO.id
--   address: on the device
--   sizeBytes: OP_MEMORY.size
--   allocationNs: time of the allocation, Unix ns; NULL: before the history began
--   releaseNs: time of the release, Unix ns; NULL: in use at the end
--   callchainId: PYTORCH_CALLCHAINS.id of the allocation's call stack
CREATE TABLE "UPROF_MEMORY_BLOCKS" (
  "deviceId" INTEGER NOT NULL,
  address INTEGER NOT NULL,
  "sizeBytes" INTEGER NOT NULL,
  "allocationNs" INTEGER,
  "releaseNs" INTEGER,
  "callchainId" INTEGER
);

-- A segment that torch's allocator reserved on a device, when the snapshot was taken.
--   deviceId: as NPU_INFO.id
--   address: on the device; -1: not recorded
--   sizeBytes: reserved
--   allocatedBytes: in use by blocks
--   freeBytes: neither in use nor waiting for a stream
--   largestFreeBytes: largest allocation that fits into the segment
--   blocks: number of blocks in use
--   kind: string id: small or large; expandable; N/A
--   streamPtr: as OP_MEMORY.streamPtr
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

-- An AI core counter metric of a task on 910A or 310P, whose msprof databases have none.
--   globalTaskId: TASK.globalTaskId
--   name: string id: as TASK_PMU_INFO.name
--   value: as TASK_PMU_INFO.value
CREATE TABLE "UPROF_TASK_PMU_INFO" (
  "globalTaskId" INTEGER NOT NULL,
  name INTEGER NOT NULL,
  value DOUBLE NOT NULL
);
