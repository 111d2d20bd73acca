// What a WorkerImpl is made of: everything with threads in it. For its own files only. (io)
#pragma once

#include <prometheus/registry.h>

#include <memory>
#include <string>
#include <utility>

#include "common/net/http_server.h"
#include "common/protocol/store_memory.h"
#include "worker/gpu/nvml/gpu_watch.h"
#include "worker/gpu/plane/device_stager.h"
#include "worker/runtime/comm_calls.h"
#include "worker/runtime/completion.h"
#include "worker/runtime/generation_plane.h"
#include "worker/runtime/pending_names.h"
#include "worker/runtime/plane_end.h"
#include "worker/runtime/timeline_file.h"
#include "worker/runtime/worker_impl.h"
#include "worker/runtime/worker_metrics.h"

namespace coordd {

// Keys of programs are apart from those of the runtime's generations.
//
// Members end in the reverse order: nothing speaks into an inbox that has gone.
struct WorkerImpl::Runtime {
  Runtime(WorkerSeams seams, Clock& clock, StackSource stack)
      : seams(std::move(seams)),
        gpus(std::move(this->seams.gpus)),
        metrics(registry),
        stacks(stack),
        gpu_watch(clock),
        program_store("program/", *this->seams.store),
        inbox(kMaxControlEvents, clock),
        plane_end(clock) {}

  WorkerSeams seams;
  GpuAccess gpus;
  prometheus::Registry registry;
  WorkerMetrics metrics;
  TraceRecorder trace;
  StackProbe stacks;
  GpuWatch gpu_watch;
  PrefixStore program_store;
  const std::shared_ptr<CommCalls> comm_calls = std::make_shared<CommCalls>();
  PendingNames names;
  ProcessSetTable process_sets;
  ControlInbox inbox;
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<Completion> completion;
  std::string generation_prefix;  // of the last one; touched where data planes are made
  std::unique_ptr<Control> control;

  // Guarded by timeline_mu.
  Mutex timeline_mu;
  std::unique_ptr<TimelineFile> timeline ABSL_GUARDED_BY(timeline_mu);

  // Guarded by stager_mu.
  Mutex stager_mu;
  bool stager_ended ABSL_GUARDED_BY(stager_mu) = false;
  std::unique_ptr<DeviceStager> stager ABSL_GUARDED_BY(stager_mu);

  PlaneEnd plane_end;  // the first to go: planes refer to what is above
};

}  // namespace coordd
