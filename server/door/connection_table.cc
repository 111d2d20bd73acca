#include "server/door/connection_table.h"

#include <utility>

namespace coordd {

void ConnectionTable::Add(const std::string& grpc_peer, Client client) {
  MutexLock lock(&mu_);
  clients_.insert_or_assign(grpc_peer, std::move(client));
}

void ConnectionTable::Remove(const std::string& grpc_peer) {
  MutexLock lock(&mu_);
  clients_.erase(grpc_peer);
}

absl::StatusOr<std::shared_ptr<const Caller>> ConnectionTable::CallerAt(
    absl::string_view grpc_peer) const {
  MutexLock lock(&mu_);
  const auto found = clients_.find(grpc_peer);
  if (found == clients_.end()) return absl::UnavailableError("this connection has ended");
  return found->second.caller;
}

std::vector<Backlog> ConnectionTable::All() const {
  std::vector<Backlog> all;
  MutexLock lock(&mu_);
  all.reserve(clients_.size());
  for (const auto& [name, one] : clients_)
    all.push_back({.fd = one.fd, .cookie = one.cookie, .peer = one.peer, .grpc_peer = name});
  return all;
}

}  // namespace coordd
