// Memory of devices for results that the library makes: used again, since to allocate and to free
// some may be to wait for everything that is on the device. (io)
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "worker/gpu/cuda/device_handles.h"

namespace coordd {

// A result is used again when nobody refers to it any more and every stream that has read it has
// come through: those of NoteReader, up to NoteReleased. One of which that is not known (nobody has
// noted a reader, or a reader is captured into a graph) is not: to free it is what is left, since
// that waits for everything on the device.
//
// Thread-safe. Outlived by its results: made with std::make_shared.
class ResultMemory : public std::enable_shared_from_this<ResultMemory> {
 public:
  // How what is not used again is freed.
  enum class Frees {
    kWhenTold,  // by Free: not while a collective is on the device, which may come to be held
    kAtOnce,    // by whoever lets go of it
  };
  // So much may lie there besides twice what was in use at one time within the last kBatches;
  // beyond it everything is given back. (Twice, since a program that is ahead of its device lets go
  // of what has yet to be read.)
  static constexpr int64_t kIdleBytesMax = int64_t{256} << 20;
  static constexpr int64_t kBatches = 256;

  ResultMemory(std::shared_ptr<DeviceRuntime> runtime, Frees frees,
               int64_t idle_bytes_max = kIdleBytesMax)
      : runtime_(std::move(runtime)), frees_(frees), idle_bytes_max_(idle_bytes_max) {}

  // Memory for a result. RESOURCE_EXHAUSTED: the driver's words.
  absl::StatusOr<std::shared_ptr<std::byte[]>> Take(int32_t device, int64_t size_bytes);
  void CountBatch();

  // Whether more memory lies there than may.
  bool full() const;
  // Frees the memory that lies there, on this thread.
  void Free();
  // Frees as Free does. From now on what comes back is freed at once: the program knows of every
  // failure.
  void Close();
  // The bytes that are in use, and those that lie there.
  int64_t bytes() const;

  // Notes that `reader` was let wait for a result of Take; for other memory it does nothing. The
  // reader stays until NoteReleased: from then on nothing that reads it is enqueued any more, on no
  // stream.
  static void NoteReader(const std::shared_ptr<std::byte[]>& result, CudaStream reader);
  static void NoteReleased(const std::shared_ptr<std::byte[]>& result);

 private:
  struct Held;
  struct Deleter;
  struct Idle {
    DeviceMemory memory;
    int32_t device;
    std::vector<DeviceEvent> ends;  // of its readers
  };
  using ByBytes = std::multimap<int64_t, Idle>;

  static int64_t ClassOf(int64_t size_bytes);
  static Held* HeldOf(const std::shared_ptr<std::byte[]>& result);
  static bool IsOver(const Idle& idle);
  // Idle memory of this size; an empty node when none fits.
  ByBytes::node_type TakeIdle(int64_t size, int32_t device);
  std::shared_ptr<std::byte[]> HandOut(DeviceMemory memory, int32_t device);
  void TakeBack(Held& held);
  bool FullLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const std::shared_ptr<DeviceRuntime> runtime_;
  const Frees frees_;
  const int64_t idle_bytes_max_;

  // Guarded by mu_.
  mutable Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  ByBytes idle_ ABSL_GUARDED_BY(mu_);
  std::vector<DeviceMemory> lost_ ABSL_GUARDED_BY(mu_);  // whose readers are not known
  int64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t idle_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t lost_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // The most of used_bytes_ since CountBatch began to count anew, and the most before.
  int64_t most_used_ ABSL_GUARDED_BY(mu_) = 0, most_used_before_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t batches_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace coordd
