// What coordrun and its agents on other hosts say to each other (agent.proto), as lines of JSON.
// Orders travel to an agent's stdin and nowhere else: they hold the job's secrets. PURE
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/coordrun/plan/torch_variables.h"
#include "client/coordrun/process/process_end.h"
#include "common/base/environment.h"
#include "coordd/v1/agent.pb.h"

namespace coordd {

using v1::AgentMessage;
using v1::AgentOrder;
using v1::AgentOrders;
using v1::AgentReport;

// The revision of these messages and of what workers say (PieceText). An agent of another revision
// is refused by name.
inline constexpr int kAgentProtocol = 5;
// A line of orders: the environment of a shell has 2 MiB at most.
inline constexpr size_t kMaxOrderBytes = size_t{8} << 20;

// For AgentOrders and the messages in them.
void SetVariable(const std::string& name, const std::string& value,
                 google::protobuf::RepeatedPtrField<v1::EnvironmentVariable>* environment);
google::protobuf::RepeatedPtrField<v1::EnvironmentVariable> ToVariables(
    const Environment& environment);
Environment FromVariables(
    const google::protobuf::RepeatedPtrField<v1::EnvironmentVariable>& variables);

AgentOrder StartOrder();
AgentOrder FinishOrder();
AgentOrder SignalOrder(int signal, int32_t worker = -1);  // -1: all
AgentOrder RestartOrder(int32_t worker);
AgentOrder PortOrder(int32_t agent);  // to the one of this number
// kMasterAtCoordinator: at the address at which the agent has reached coordd.
inline constexpr char kMasterAtCoordinator[] = "@";
v1::TorchPlaceOrder PlaceOrder(int32_t worker, const TorchPlace& place);
v1::TorchMasterOrder MasterOrder(const TorchMaster& master);
TorchPlace TorchPlaceOf(const v1::TorchPlaceOrder& order);
TorchMaster TorchMasterOf(const v1::TorchMasterOrder& order);

// One line without its end.
std::string Line(const google::protobuf::Message& message);

// INVALID_ARGUMENT of each: one sentence that says what is wrong.
// FAILED_PRECONDITION: another revision.
absl::StatusOr<AgentOrders> ParseOrders(absl::string_view line);
// Parses an order. INVALID_ARGUMENT also for one whose numbers make no sense.
absl::StatusOr<AgentOrder> ParseOrder(absl::string_view line);
// A report of another revision has a version and a host, whatever else there is in it.
absl::StatusOr<AgentMessage> ParseMessage(absl::string_view text);
absl::StatusOr<v1::MpiPlaces> ParseMpiPlaces(absl::string_view text);
absl::StatusOr<v1::TorchMasterOrder> ParseMasterOrder(absl::string_view text);

}  // namespace coordd
