// How the ranks of a communicator of fake_nccl.so meet: memory that all of them have mapped. Ranks
// are threads of one process, or processes with one FAKE_NCCL_DIR.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/protocol/types.h"
#include "worker/gpu/nccl/nccl_api.h"

namespace coordd {

constexpr int kFakeRanksMax = 16;
constexpr size_t kFakeMailboxBytes = 256 << 10;
constexpr size_t kFakePairBytes = 16 << 10;

// What the ranks of one operation must agree on.
struct FakeOperation {
  int32_t kind = 0, type = 0, op = 0, root = 0;
  uint64_t count = 0;
  double input_factor = 1.0;  // coordd gives all ranks the same
  friend bool operator==(const FakeOperation&, const FakeOperation&) = default;
};

struct FakeTransfer {
  bool send = false;
  int peer = 0;
  char* data = nullptr;
  size_t bytes = 0;
};

// What NCCL takes for equal on all ranks, and does not compare.
struct FakeWindow {
  uint64_t bytes = 0;
  uint64_t allocation = 0;  // bytes of that
  uint64_t place = 0;       // in the addresses under which each rank sees all ranks' windows
};

class FakeClique {
 public:
  // Attaches `rank` to the clique of so many ids. nullptr: one of them has served before, or this
  // rank is taken.
  static std::shared_ptr<FakeClique> Attach(const NcclUniqueId* ids, int count, int size, int rank);
  FakeClique(const FakeClique&) = delete;
  ~FakeClique();

  // Ranks that have attached.
  int attached() const;
  // All ranks of a clique that was shrunk from another one tell the same of that; false: this one
  // does not.
  bool ShrunkBy(uint64_t digest);
  void SetDevice(int rank, uint32_t key);
  // As NCCL_HOSTID of those who have attached says.
  bool OnOneHost(int a, int b) const;
  // Two ranks with equal keys that are set; or {-1, -1}.
  std::pair<int, int> SameDevice() const;

  // Windows are made by all ranks together: notes that `rank` has come to its next one, and returns
  // how many that are.
  uint32_t AddWindow(int rank, const FakeWindow& window);
  // Whether all have come to that one; leaves what is not equal in theirs, nullptr: nothing.
  bool WindowIsMade(uint32_t number, const char** differs) const;

  // They end with false when `aborted` becomes true, else when all ranks have called.
  using Aborted = std::function<bool()>;
  bool Barrier(int rank, const Aborted& aborted);
  // Whether all ranks gave the same operation is left in `equal`.
  bool Agree(int rank, const FakeOperation& operation, const Aborted& aborted, bool* equal);
  // `output` gets op over all ranks' `input`s (empty: nobody wants it here), or, with kNone, the
  // bytes of `root`.
  bool Combine(int rank, DataType dtype, ReduceOp op, int root, const char* input, char* output,
               size_t bytes, const Aborted& aborted);
  bool Exchange(int rank, std::vector<FakeTransfer> transfers, const Aborted& aborted);

 private:
  struct Shared;
  FakeClique(Shared* shared, std::string path) : shared_(shared), path_(std::move(path)) {}
  bool Move(int rank, FakeTransfer& transfer);

  Shared* const shared_;
  const std::string path_;  // of the file; empty: this process's alone
};

}  // namespace coordd
