// Bounds of proto/coordd/v1 that both sides keep: the sender splits or cuts, the receiver checks
// before anything reaches its state. Bounds of a tensor are in tensor_spec.h, of a key in store.h.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace coordd {

inline constexpr int64_t kMaxJobNameBytes = 128;   // fits a label of Prometheus and a file name
inline constexpr int64_t kMaxTokenBytes = 256;     // 128 hexadecimal bytes of secret
inline constexpr int64_t kMaxWorkerIdBytes = 128;  // host name, pid and a random part
inline constexpr int64_t kMaxHostnameBytes = 256;  // HOST_NAME_MAX is 64, DNS allows 253
inline constexpr int64_t kMaxNodeIdBytes = 256;    // boot id and two namespaces are about 80
inline constexpr int64_t kMaxTopologyLabels = 8;   // hall, aisle, row, rack, switch, … and room
inline constexpr int64_t kMaxTopologyLabelBytes = 128;
// Of one level in a membership, which each rank is sent: up to 12 KiB. Racks of many different
// sizes, or ranks that were kept through many generations, have more, which are left out.
inline constexpr int64_t kMaxDomainRuns = 1024;
inline constexpr int64_t kMaxDevices = 64;  // the largest machine known has 16 GPUs
inline constexpr int64_t kMaxDeviceFieldBytes = 128;
inline constexpr int64_t kMaxVersionBytes = 64;
inline constexpr int64_t kMaxTensorPaths = 8;       // jobs have a set or two with tensors on GPUs
inline constexpr int64_t kMaxTransportBytes = 256;  // a phrase, with the name of a library
inline constexpr int64_t kMaxEdgeBytes = 64;        // a word or two, as of COORDD_TRANSPORT
inline constexpr int64_t kMaxEdgeGroups = 8;        // a rank has two transports between nodes
inline constexpr int64_t kMaxEdgeRanks = 16;        // more are counted
inline constexpr int64_t kMaxThrottleReasons = 16;
inline constexpr int64_t kMaxThrottleReasonBytes = 64;
inline constexpr int64_t kMaxGpuTroubleBytes = 256;  // of the vendor's library
inline constexpr int64_t kMaxMetricsAddressBytes = 256;
inline constexpr int64_t kMaxCommWaits = 4;        // of one rank
inline constexpr int64_t kMaxCommWaitBytes = 128;  // of a comm's name, and of what is called
inline constexpr int64_t kMaxCommWaitRanks = 64;   // more are not named
inline constexpr int64_t kMaxDeviceBatches = 4;    // of one rank
inline constexpr int64_t kMaxDeviceBatchNameBytes = 128;
inline constexpr int64_t kMaxLanePositions = 256;
inline constexpr int64_t kMaxLaneMarks = 16;                     // workers send at most 8
inline constexpr int64_t kMaxLaneMarkCycles = int64_t{1} << 42;  // a century of 1 ms each
inline constexpr int64_t kMaxTraceChunkBytes = 256 << 10;        // of its batches, serialised
inline constexpr int64_t kMaxLaneReports = 65536;  // a set for each pair of ranks of a large job
// Of a job. A worker takes a few hundred bytes for each before it knows whether they are there.
inline constexpr int64_t kMaxJobRanks = 1 << 20;
inline constexpr int64_t kMaxProcessSetRanks = 1 << 17;  // the largest job that coordd takes
inline constexpr int64_t kMaxProcessSetNameBytes = 256;  // as of a tensor
inline constexpr int64_t kMaxReasonBytes = 1024;         // every sentence that travels
inline constexpr int64_t kMaxStackBytes = 8192;          // of a program's threads
inline constexpr int64_t kMaxLaunchBytes = 128;          // run, worker and start
inline constexpr absl::Duration kMaxDrainGrace = absl::Hours(7 * 24);
inline constexpr int64_t kMaxAskedByBytes = 256;        // who wants a worker to go
inline constexpr int64_t kMaxDismissedLaunches = 1024;  // of one request
inline constexpr int64_t kMaxLastWordBytes = 256;       // a line of stderr in an error

// A message of TensorsReady or TensorsWithdrawn, serialised. A thousand specs exceed 64 KiB; gRPC's
// own bound of a message is 1 MiB here.
inline constexpr int64_t kMaxTensorsReadyBytes = 256 << 10;
// The size of ProcessSets in one message.
inline constexpr int64_t kProcessSetsBytes = 256 << 10;
// Numbers of process sets are below it, removed ones included: a worker has two lanes for each set
// (worker/interfaces/lanes.h).
inline constexpr int32_t kProcessSetNumbers = 61 << 12;
// Two process sets for each rank of the largest job: sets for the positions in a node, and a chain
// of pairs.
inline constexpr int64_t kMaxProcessSets = 15 << 14;
static_assert(kMaxProcessSets < kProcessSetNumbers);
// The members of all sets of a job that were asked for: 64 MiB of rank numbers.
inline constexpr int64_t kMaxProcessSetMembers = 1 << 24;
// What coordd puts in one CollectivePlan or TensorFailures before it starts another message.
inline constexpr int64_t kPlanMessageBytes = 256 << 10;

// A process set's lane has the set's number, below kFirstScheduleLane. The lanes of schedules
// follow. A worker numbers further lanes behind those (worker/interfaces/lanes.h).
inline constexpr int32_t kFirstScheduleLane = 1 << 19;
inline constexpr int64_t kMaxSchedules = 1 << 18;  // in one generation

}  // namespace coordd
