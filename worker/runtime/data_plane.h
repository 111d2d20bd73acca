// Where batches go: to the host's data plane, or to that of devices.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "worker/execute/executor.h"
#include "worker/gpu/nccl/nccl_route.h"
#include "worker/gpu/plane/device_plane.h"
#include "worker/interfaces/edge_report.h"

namespace coordd {

// Both data planes of a generation, for who decides what is launched. Thread-safe; as Executor.
class DataPlane {
 public:
  // The arguments outlive this object. `edges`: nullptr: nobody says over what ranks are reached.
  DataPlane(Executor& host, DevicePlane& devices, EdgeReport* edges)
      : host_(host), devices_(devices), edges_(edges) {}

  void Launch(std::unique_ptr<BatchJob> batch) {
    if (FitsNccl(batch->tensors().front().spec())) {
      devices_.Launch(std::move(batch));
    } else {
      host_.Launch(std::move(batch));
    }
  }
  void DefineGroup(ProcessSetId process_set, const RankList& ranks) {
    devices_.DefineGroup(process_set, ranks);
    host_.DefineGroup(process_set, ranks);
  }
  void EndGroup(ProcessSetId process_set) {
    devices_.EndGroup(process_set);
    host_.EndGroup(process_set);
  }
  // What devices have of it may still go to the host (DevicePlane::Hooks::end_lane).
  void EndLane(LaneId lane) { devices_.EndLane(lane); }
  void Abort() {
    host_.Abort();
    devices_.Abort();
  }
  const std::string& backend_name() const { return host_.backend_name(); }
  int64_t fusion_bytes() const { return host_.fusion_bytes(); }
  std::optional<v1::DeviceUse> DeviceUseBeyond(int64_t* told) { return devices_.UseBeyond(told); }
  void TellOfDevice(absl::Time now, v1::Heartbeat& heartbeat) {
    devices_.TellOfDevice(now, heartbeat);
  }
  std::optional<v1::HostEdges> HostEdgesBeyond(int64_t* told) {
    return edges_ == nullptr ? std::nullopt : edges_->EdgesBeyond(told);
  }
  int64_t device_fusion_bytes() const { return devices_.fusion_bytes(); }
  int64_t device_result_bytes() { return devices_.result_bytes(); }
  int64_t device_registered_bytes() { return devices_.registered_bytes(); }

 private:
  Executor& host_;
  DevicePlane& devices_;
  EdgeReport* const edges_;
};

}  // namespace coordd
