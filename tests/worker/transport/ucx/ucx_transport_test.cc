#include "worker/transport/ucx/ucx_transport.h"

#include <gmock/gmock.h>

#include <map>

#include "tests/worker/support/collective_backend_conformance.h"
#include "tests/worker/support/transport_conformance.h"
#include "worker/host/host_backend.h"
#include "worker/transport/peers/network_interface.h"
#include "worker/transport/routed_transport.h"
#include "worker/transport/shm/shm_transport.h"
#include "worker/transport/ucx/ucx_api.h"
#include "worker/transport/ucx/ucx_context.h"
#include "worker/transport/ucx/ucx_factory.h"

namespace coordd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

absl::StatusOr<std::unique_ptr<Transport>> Over(const UcxTransportOptions& options) {
  return TryMakeUcxTransport(options, Clock::Real());
}

std::unique_ptr<Transport> OverLoopback() {
  return Over({.local_address = "127.0.0.1", .environment = {}, .ports = {}}).value();
}

std::unique_ptr<Transport> Routed() {
  return std::make_unique<RoutedTransport>(std::make_unique<ShmTransport>(), OverLoopback());
}

// Nodes of two ranks, and a node of one at the end of an odd world.
GroupLayout Pairs(Rank self, int32_t world_size) {
  std::vector<NodeRun> nodes;
  if (world_size > 1) nodes.push_back({world_size / 2, 2});
  if (world_size % 2 == 1) nodes.push_back({1, 1});
  return GroupLayout(self, nodes);
}

TransportCase TransportOf(std::string name, std::unique_ptr<Transport> (*make)()) {
  return {.name = std::move(name), .new_group = [make](int32_t) { return make; }, .layout = Pairs};
}

BackendCase BackendOf(std::string name, std::unique_ptr<Transport> (*make)()) {
  return {.name = std::move(name),
          .new_group =
              [make](int32_t) {
                return [make]() -> std::unique_ptr<CollectiveBackend> {
                  return std::make_unique<HostBackend>(make());
                };
              },
          .layout = Pairs};
}

std::string NameOf(const auto& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Ucx, TransportConformance,
                         testing::Values(TransportOf("Loopback", OverLoopback),
                                         TransportOf("Routed", Routed)),
                         [](const auto& info) { return NameOf(info); });

INSTANTIATE_TEST_SUITE_P(HostOverUcx, CollectiveBackendConformance,
                         testing::Values(BackendOf("Loopback", OverLoopback),
                                         BackendOf("Routed", Routed)),
                         [](const auto& info) { return NameOf(info); });

// UCX's functions with counted, and failing, ends of workers.
struct CountedEnds {
  static inline int destroyed = 0;
  static void Destroy(ucp_worker_h worker) {
    ++destroyed;
    real.worker_destroy(worker);
  }
  static ucs_status_ptr_t FailToFlush(ucp_worker_h, const ucp_request_param_t*) {
    return UCS_STATUS_PTR(UCS_ERR_TIMED_OUT);
  }
  static inline UcxFunctions real;

  static UcxFunctions Functions() {
    destroyed = 0;
    real = LoadUcx({}).value();
    UcxFunctions counted = real;
    counted.worker_destroy = &CountedEnds::Destroy;
    return counted;
  }
};

std::unique_ptr<Transport> Alone(const UcxFunctions& ucx, InMemoryStore& store) {
  std::unique_ptr<Transport> transport = MakeUcxTransport(
      ucx, {.local_address = "127.0.0.1", .environment = {}, .ports = {}}, Clock::Real());
  EXPECT_TRUE(
      transport->Connect(GroupLayout::OneNode(Rank{0}, 1), store, absl::InfiniteFuture()).ok());
  return transport;
}

TEST(UcxTransport, EndsItsWorkerWithItself) {
  InMemoryStore store;
  Alone(CountedEnds::Functions(), store).reset();
  EXPECT_EQ(CountedEnds::destroyed, 1);
}

// Its end would be the process's.
TEST(UcxTransport, LeavesAWorkerThatIsStillConnectingAlone) {
  InMemoryStore store;
  UcxFunctions ucx = CountedEnds::Functions();
  ucx.worker_flush_nbx = &CountedEnds::FailToFlush;
  Alone(ucx, store).reset();
  EXPECT_EQ(CountedEnds::destroyed, 0);
}

// UCX's functions, which remember what was set, and refuse what `refuses` names.
struct Settings {
  static inline UcxFunctions real;
  static inline std::map<std::string, std::string> taken;
  static inline std::string refuses;

  static ucs_status_t Modify(ucp_config_t* config, const char* name, const char* value) {
    if (refuses == name) return UCS_ERR_INVALID_PARAM;
    const ucs_status_t status = real.config_modify(config, name, value);
    if (status == UCS_OK) taken[name] = value;
    return status;
  }
  static UcxFunctions Functions() {
    taken.clear();
    refuses.clear();
    real = LoadUcx({}).value();
    UcxFunctions remembering = real;
    remembering.config_modify = &Settings::Modify;
    return remembering;
  }
  static absl::Status Open(const UcxFunctions& ucx) {
    const UcxTransportOptions options = {
        .local_address = "127.0.0.1", .environment = {}, .ports = PortRange{20000, 20099}};
    return UcxContext::Open(ucx, options, GroupLayout::OneNode(Rank{0}, 1)).status();
  }
};

TEST(UcxTransport, SetsNothingThatThisUcxDoesNotTake) {
  const UcxFunctions ucx = Settings::Functions();
  testing::internal::CaptureStderr();
  EXPECT_TRUE(Settings::Open(ucx).ok());
  // It takes any name at first, and warns of those that are nobody's.
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("UCX WARN")));
  EXPECT_EQ(Settings::taken.size(), 9u);
}

TEST(UcxTransport, LeavesOutWhatALaterUcxDoesNotTake) {
  const UcxFunctions ucx = Settings::Functions();
  for (const char* name : {"KEEPALIVE_INTERVAL", "ZCOPY_THRESH", "RNDV_THRESH", "ADAPTIVE_PROGRESS",
                           "TX_SEG_SIZE", "TCP_TX_SEG_SIZE"}) {
    Settings::refuses = name;
    EXPECT_TRUE(Settings::Open(ucx).ok()) << name;
  }
}

TEST(UcxTransport, SaysWhatItCannotDoWithout) {
  const UcxFunctions ucx = Settings::Functions();
  Settings::refuses = "NET_DEVICES";
  const absl::Status status = Settings::Open(ucx);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("does not take UCX_NET_DEVICES="), HasSubstr("Invalid parameter"),
                    HasSubstr("needed to keep to one network interface")));
}

TEST(UcxTransport, GoesRoundTheLoopbackInterfaceWhereUcxReachesNobodyOverIt) {
  UcxFunctions ucx = Settings::Functions();
  ucx.version = {1, 20, 1};
  const absl::Status status = Settings::Open(ucx);
  const absl::StatusOr<NetworkInterface> other = InterfaceBesideLoopback();
  if (other.ok()) {
    EXPECT_EQ(Settings::taken["NET_DEVICES"], other->name);
  } else {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected UCX 1.19 or before"));
  }
}

// Protocols for TCP are chosen where nothing else can carry the messages.
TEST(UcxTransport, KnowsWhetherItGoesOverTcp) {
  const UcxFunctions ucx = LoadUcx({}).value();
  auto goes_over_tcp = [&ucx](Environment environment) {
    const UcxTransportOptions options = {
        .local_address = "127.0.0.1", .environment = std::move(environment), .ports = {}};
    const auto context = UcxContext::Open(ucx, options, GroupLayout::OneNode(Rank{0}, 1));
    return context.ok() && context->message_bytes_max() > 0;
  };
  EXPECT_TRUE(goes_over_tcp({}));
  EXPECT_TRUE(goes_over_tcp({{"UCX_TLS", "self,tcp"}}));
  EXPECT_FALSE(goes_over_tcp({{"UCX_TLS", "all"}}));
  EXPECT_FALSE(goes_over_tcp({{"UCX_TLS", "tcp,rc"}}));
  EXPECT_FALSE(goes_over_tcp({{"UCX_NET_DEVICES", "lo"}}));
}

TEST(UcxTransport, RefusesAnAddressThatNoInterfaceHas) {
  InMemoryStore store;
  const std::unique_ptr<Transport> transport =
      Over({.local_address = "192.0.2.1", .environment = {}, .ports = {}}).value();
  const absl::Status status =
      transport->Connect(GroupLayout::OneNode(Rank{0}, 2), store, absl::InfiniteFuture());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("192.0.2.1"));
}

}  // namespace
}  // namespace coordd
