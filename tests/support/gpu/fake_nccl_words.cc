// What fake_nccl.so says with NCCL_DEBUG=INFO, in the formats of the version that it stands in for.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "tests/support/gpu/fake_nccl_comm.h"
#include "tests/support/gpu/fake_nccl_version.h"

namespace coordd {
namespace {

enum Within : long { kNvLink, kPcie, kSharedMemory };
enum Between : long { kSocket, kInfiniBand, kGpuDirect, kGpuDirectOfSome, kPlugin };

bool Says() {
  const char* const level = getenv("NCCL_DEBUG");
  return level != nullptr && std::string(level) == "INFO";
}

// NCCL_DEBUG_FILE with the host's name for %h and the process's number for %p.
std::string FileName() {
  const char* const named = getenv("NCCL_DEBUG_FILE");
  std::string name = named != nullptr ? named : "";
  for (const auto& [mark, text] :
       {std::pair<std::string, std::string>{"%h", "fake"}, {"%p", std::to_string(getpid())}}) {
    const size_t at = name.find(mark);
    if (at != std::string::npos) name.replace(at, mark.size(), text);
  }
  return name;
}

void Say(const FakeComm& comm, const std::string& what) {
  static FILE* const file = FileName().empty() ? stdout : std::fopen(FileName().c_str(), "a");
  if (file == nullptr) return;
  std::fprintf(file, "fake:%d:%d [%d] NCCL INFO %s\n", getpid(), getpid(), comm.device,
               what.c_str());
  std::fflush(file);
}

std::string Network(long between, int card) {
  const std::string name = between == kSocket   ? "Socket"
                           : between == kPlugin ? "Fake Fabric"
                                                : "IB";
  const bool direct = between == kGpuDirect || (between == kGpuDirectOfSome && card == 0);
  return "NET/" + name + "/" + std::to_string(card) + (direct ? "/GDRDMA" : "");
}

// Of a host.
std::string Local(long within) {
  if (within == kSharedMemory)
    return FAKE_NCCL_VERSION < 23000 ? "SHM/direct/direct" : "SHM/direct";
  return FAKE_NCCL_VERSION < 22105 ? "P2P/IPC/read" : "P2P/CUMEM/read";
}

void SayEdge(const FakeComm& comm, int from, int to) {
  const std::string ends = std::to_string(from) + "[" + std::to_string(from) + "] -> " +
                           std::to_string(to) + "[" + std::to_string(to) + "]";
  const long within = FakeNcclSettings().Get("within");
  if (comm.clique->OnOneHost(from, to)) {
    if (comm.rank == from)
      Say(comm, (within == kSharedMemory ? "Channel 00 : " : "Channel 00/0 : ") + ends + " via " +
                    Local(within));
    return;
  }
  Say(comm, "Channel 00/0 : " + ends + (comm.rank == from ? " [send]" : " [receive]") + " via " +
                Network(FakeNcclSettings().Get("between"), from % 2));
}

void SayNetwork(const FakeComm& comm) {
  const long between = FakeNcclSettings().Get("between");
  if (between != kSocket && between != kPlugin) {
    const char* const gdr = between == kInfiniBand ? "Disabled" : "Enabled";
    for (const char* card : {"0 'mlx5_0'", "1 'mlx5_1'"})
      Say(comm, std::string("NET/IB : GPU Direct RDMA ") + gdr + " for HCA " + card);
  }
  // From 2.30 on that is not said.
  if (between == kGpuDirectOfSome && FAKE_NCCL_VERSION < 23000)
    Say(comm, "GPU Direct RDMA Disabled for GPU 1 / HCA 1 (distance 7 > 4)");
}

}  // namespace

void SayConnections(const FakeComm& comm) {
  if (!Says()) return;
  const int next = (comm.rank + 1) % comm.size, last = (comm.rank + comm.size - 1) % comm.size;
  Say(comm, std::string("Pattern 4, crossNic 0, nChannels 1, bw 20.000000/20.000000, type ") +
                (FakeNcclSettings().Get("within") == kNvLink ? "NVL" : "PHB") +
                "/PHB, sameChannels 1");
  SayNetwork(comm);
  if (comm.size > 1) {
    SayEdge(comm, comm.rank, next);
    SayEdge(comm, last, comm.rank);
  }
  Say(comm, std::string("Connected all rings") +
                (FAKE_NCCL_VERSION < 22400 ? "" : ", use ring PXN 0 GDR 1"));
}

}  // namespace coordd
