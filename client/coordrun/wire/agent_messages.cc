#include "client/coordrun/wire/agent_messages.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace coordd {
namespace {

using google::protobuf::RepeatedPtrField;
namespace json = google::protobuf::util;

absl::Status Malformed(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("an agent's message begins with '",
                                                 text.substr(0, 60), "': ", why,
                                                 "; expected coordrun's JSON"));
}

// Fields of other revisions are left out, so that a message still says which revision it is of.
absl::Status Parse(absl::string_view text, google::protobuf::Message* message) {
  json::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto status = json::JsonStringToMessage({text.data(), text.size()}, message, options);
  if (status.ok()) return absl::OkStatus();
  return Malformed(text, std::string(status.message()));
}

bool IsSane(const AgentOrder& order) {
  switch (order.order_case()) {
    case AgentOrder::kSignal:
      return order.signal().signal() > 0 && order.signal().signal() < 65 &&
             order.signal().worker() >= -1;
    case AgentOrder::kRestart:
      return order.restart() >= 0;
    case AgentOrder::kNewPort:
      return order.new_port() >= 0;
    case AgentOrder::kPlace: {
      const v1::TorchPlaceOrder& place = order.place();
      return std::min({place.worker(), place.rank(), place.local_rank(), place.group_rank()}) >=
                 0 &&
             place.size() > place.rank() && place.local_size() > place.local_rank();
    }
    case AgentOrder::kMaster:
      return !order.master().address().empty() && order.master().port() > 0 &&
             order.master().port() <= 65535;
    case AgentOrder::kStart:
    case AgentOrder::kFinish:
      return true;
    case AgentOrder::ORDER_NOT_SET:
      break;
  }
  return false;
}

}  // namespace

void SetVariable(const std::string& name, const std::string& value,
                 RepeatedPtrField<v1::EnvironmentVariable>* environment) {
  const auto found = std::find_if(environment->begin(), environment->end(),
                                  [&](const auto& variable) { return variable.name() == name; });
  v1::EnvironmentVariable* variable = found != environment->end() ? &*found : environment->Add();
  variable->set_name(name);
  variable->set_value(value);
}

RepeatedPtrField<v1::EnvironmentVariable> ToVariables(const Environment& environment) {
  RepeatedPtrField<v1::EnvironmentVariable> variables;
  for (const auto& [name, value] : environment) {
    v1::EnvironmentVariable* variable = variables.Add();
    variable->set_name(name);
    variable->set_value(value);
  }
  return variables;
}

Environment FromVariables(const RepeatedPtrField<v1::EnvironmentVariable>& variables) {
  Environment environment;
  for (const v1::EnvironmentVariable& variable : variables)
    environment[variable.name()] = variable.value();
  return environment;
}

AgentOrder StartOrder() {
  AgentOrder order;
  order.mutable_start();
  return order;
}

AgentOrder FinishOrder() {
  AgentOrder order;
  order.mutable_finish();
  return order;
}

AgentOrder SignalOrder(int signal, int32_t worker) {
  AgentOrder order;
  order.mutable_signal()->set_signal(signal);
  order.mutable_signal()->set_worker(worker);
  return order;
}

AgentOrder RestartOrder(int32_t worker) {
  AgentOrder order;
  order.set_restart(worker);
  return order;
}

AgentOrder PortOrder(int32_t agent) {
  AgentOrder order;
  order.set_new_port(agent);
  return order;
}

v1::TorchPlaceOrder PlaceOrder(int32_t worker, const TorchPlace& place) {
  v1::TorchPlaceOrder order;
  order.set_worker(worker);
  order.set_rank(place.rank);
  order.set_size(place.size);
  order.set_local_rank(place.local_rank);
  order.set_local_size(place.local_size);
  order.set_group_rank(place.group_rank);
  return order;
}

v1::TorchMasterOrder MasterOrder(const TorchMaster& master) {
  v1::TorchMasterOrder order;
  order.set_address(master.address);
  order.set_port(master.port);
  return order;
}

TorchPlace TorchPlaceOf(const v1::TorchPlaceOrder& order) {
  return {.rank = order.rank(),
          .size = order.size(),
          .local_rank = order.local_rank(),
          .local_size = order.local_size(),
          .group_rank = order.group_rank()};
}

TorchMaster TorchMasterOf(const v1::TorchMasterOrder& order) {
  return {.address = order.address(), .port = static_cast<uint16_t>(order.port())};
}

std::string Line(const google::protobuf::Message& message) {
  std::string line;
  const auto status = json::MessageToJsonString(message, &line);
  COORDD_CHECK(status.ok());  // strings that are not UTF-8 are `bytes` in these messages
  return line;
}

absl::StatusOr<AgentOrders> ParseOrders(absl::string_view line) {
  AgentOrders orders;
  if (absl::Status status = Parse(line, &orders); !status.ok()) return status;
  if (orders.protocol() == 0) return Malformed(line, "it has no protocol");
  if (orders.protocol() != kAgentProtocol) {
    return absl::FailedPreconditionError(
        absl::StrCat("coordrun speaks revision ", orders.protocol(),
                     " of the agents' protocol, expected ", kAgentProtocol));
  }
  if (orders.command().empty()) return Malformed(line, "it has no command");
  return orders;
}

absl::StatusOr<AgentOrder> ParseOrder(absl::string_view line) {
  AgentOrder order;
  if (absl::Status status = Parse(line, &order); !status.ok()) return status;
  if (!IsSane(order)) return Malformed(line, "it is no order");
  return order;
}

absl::StatusOr<AgentMessage> ParseMessage(absl::string_view text) {
  AgentMessage message;
  if (absl::Status status = Parse(text, &message); !status.ok()) return status;
  if (message.message_case() == AgentMessage::MESSAGE_NOT_SET)
    return Malformed(text, "it says nothing");
  return message;
}

absl::StatusOr<v1::MpiPlaces> ParseMpiPlaces(absl::string_view text) {
  v1::MpiPlaces places;
  if (absl::Status status = Parse(text, &places); !status.ok()) return status;
  return places;
}

absl::StatusOr<v1::TorchMasterOrder> ParseMasterOrder(absl::string_view text) {
  AgentOrder order;
  if (absl::Status status = Parse(text, order.mutable_master()); !status.ok()) return status;
  if (!IsSane(order)) return Malformed(text, "it names no address with a port");
  return order.master();
}

}  // namespace coordd
