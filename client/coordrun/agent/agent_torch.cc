#include "client/coordrun/agent/agent_torch.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/coordrun/plan/thread_share.h"
#include "client/coordrun/plan/worker_environment.h"
#include "client/coordrun/wire/host_look.h"
#include "common/launch/host_identity.h"
#include "common/net/address.h"

namespace coordd {
namespace {

int32_t WholeNumberOr(const Environment& environment, const char* name, int32_t otherwise) {
  int32_t number = 0;
  return absl::SimpleAtoi(Variable(environment, name), &number) ? number : otherwise;
}

}  // namespace

void AgentTorch::Begin(const AgentOrders& orders, const Environment& environment,
                       AgentReport* report) {
  names_.assign(orders.torch().begin(), orders.torch().end());
  port_range_ = orders.port_range();
  if (names_.empty()) return;
  AgentReport look;
  LookAtCores(&look);
  cores_ = look.cores();
  is_task_ = orders.identity() == v1::AGENT_IDENTITY_SLURM;
  group_ = is_task_ ? WholeNumberOr(environment, "SLURM_NODEID", 0) : orders.number();
  const auto coordinator = ParseHostPort(Variable(environment, "COORDD_ADDR"));
  if (coordinator.ok()) coordinator_ = coordinator->host;
  report->set_node(ThisHost(Variable(environment, "COORDD_NODE_ID")).node_id);
  report->set_labels(Variable(environment, "COORDD_TOPOLOGY"));
  if (coordinator.ok()) report->set_address(LocalAddressTowards(*coordinator).value_or(""));
  report->set_first_local(WholeNumberOr(environment, "COORDD_LOCAL_RANK", 0));
  report->set_master_port(PickPort());
}

uint16_t AgentTorch::PickPort() {
  auto port = MasterPort::Reserve(port_range_);
  if (!port.ok()) return 0;  // torch's program then says that it has none
  port_ = *std::move(port);
  return port_->port();
}

bool AgentTorch::Obey(const AgentOrder& order) {
  if (order.has_place()) {
    places_[order.place().worker()] = TorchPlaceOf(order.place());
    return true;
  }
  if (!order.has_master()) return false;
  master_ = TorchMasterOf(order.master());
  if (master_.address == kMasterAtCoordinator) master_.address = coordinator_;
  return true;
}

Environment AgentTorch::VariablesOf(int32_t worker, const Environment& environment) const {
  if (names_.empty()) return {};
  TorchPlace place = {.rank = WholeNumberOr(environment, "COORDD_RANK", worker),
                      .size = WholeNumberOr(environment, "COORDD_SIZE", 1),
                      .local_rank = WholeNumberOr(environment, "COORDD_LOCAL_RANK", 0),
                      .local_size = WholeNumberOr(environment, "COORDD_LOCAL_SIZE", 1),
                      .group_rank = group_};
  const auto told = places_.find(worker);
  if (told != places_.end()) place = told->second;
  Environment variables = TorchVariables(names_, place, master_);
  Overlay(ThreadVariables(ThreadsFor(environment), environment), &variables);
  // The hint says the same, so that coordd gives this rank.
  if (told != places_.end()) variables["COORDD_RANK"] = absl::StrCat(place.rank);
  return variables;
}

int32_t AgentTorch::ThreadsFor(const Environment& environment) const {
  const int32_t workers = WholeNumberOr(environment, "COORDD_LOCAL_SIZE", 1);
  if (!is_task_) return ThreadsEach(cores_, workers);
  return ThreadsOfTask(cores_, workers, WholeNumberOr(environment, "SLURM_CPUS_ON_NODE", cores_));
}

Environment AgentTorch::MasterOf() const { return MasterVariables(names_, master_); }

}  // namespace coordd
