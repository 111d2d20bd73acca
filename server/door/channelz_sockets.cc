#include "server/door/channelz_sockets.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace coordd {
namespace {

constexpr absl::string_view kOwnSocket = "unix-abstract:";
constexpr int kMaxPages = 4096;  // of 500 sockets each; more are taken the next time

// Discarded where it is none.
nlohmann::json TakeJson(char* text) {
  if (text == nullptr) return nlohmann::json::value_t::discarded;
  nlohmann::json parsed = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  gpr_free(text);
  return parsed;
}

// proto3's JSON has numbers of 64 bits as strings, and leaves out what is empty.
std::string StringAt(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t NumberAt(const nlohmann::json& object, const char* key) {
  int64_t number = 0;
  return absl::SimpleAtoi(StringAt(object, key), &number) ? number : -1;
}

nlohmann::json ListAt(const nlohmann::json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() && found->is_array() ? *found
                                                                          : nlohmann::json::array();
}

}  // namespace

std::string PeerOfSocketName(absl::string_view name) {
  if (const size_t at = name.find(kOwnSocket); at != absl::string_view::npos)
    return std::string(name.substr(at));
  const size_t at = std::min(name.find("ipv4:"), name.find("ipv6:"));
  if (at == absl::string_view::npos) return "";
  const std::string text = absl::StrReplaceAll(
      name.substr(at + 5), {{"%5B", "["}, {"%5D", "]"}, {"%5b", "["}, {"%5d", "]"}});
  // A link's name, as of fe80::1%25eth0, tells nothing more.
  const size_t scope = text.find('%'), end = text.find(']');
  if (scope == std::string::npos || end == std::string::npos || scope > end) return text;
  return absl::StrCat(text.substr(0, scope), text.substr(end));
}

std::vector<ChannelzSocket> ChannelzSocketsFrom(std::map<int64_t, int64_t>& next_by_server) {
  std::vector<ChannelzSocket> found;
  const nlohmann::json servers = TakeJson(grpc_channelz_get_servers(0));
  for (const nlohmann::json& server : ListAt(servers, "server")) {
    const auto ref = server.is_object() ? server.find("ref") : server.end();
    if (!server.is_object() || ref == server.end()) continue;
    const int64_t id = NumberAt(*ref, "serverId");
    if (id < 0) continue;
    int64_t& next = next_by_server[id];
    for (int page = 0; page < kMaxPages; ++page) {
      const nlohmann::json sockets =
          TakeJson(grpc_channelz_get_server_sockets(id, next, /*max_results=*/0));
      const nlohmann::json refs = ListAt(sockets, "socketRef");
      for (const nlohmann::json& socket : refs) {
        const int64_t number = NumberAt(socket, "socketId");
        next = std::max(next, number + 1);
        std::string peer = PeerOfSocketName(StringAt(socket, "name"));
        if (!peer.empty()) found.push_back({number, std::move(peer)});
      }
      if (refs.empty() || (sockets.contains("end") && sockets["end"] == true)) break;
    }
  }
  return found;
}

uint64_t CallsOfSocketJson(absl::string_view text) {
  const nlohmann::json socket =
      nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  const auto inner = socket.is_object() ? socket.find("socket") : socket.end();
  if (!socket.is_object() || inner == socket.end() || !inner->is_object()) return 0;
  const auto data = inner->find("data");
  if (data == inner->end()) return 0;
  const auto count = [&data](const char* key) {
    return std::max(NumberAt(*data, key), int64_t{0});
  };
  const int64_t ended = count("streamsSucceeded") + count("streamsFailed");
  return static_cast<uint64_t>(std::max(count("streamsStarted") - ended, int64_t{0}));
}

absl::flat_hash_map<std::string, uint64_t> CallsUnderWay() {
  absl::flat_hash_map<std::string, uint64_t> calls;
  std::map<int64_t, int64_t> all;
  for (const ChannelzSocket& socket : ChannelzSocketsFrom(all)) {
    char* const text = grpc_channelz_get_socket(socket.id);
    if (text == nullptr) continue;  // closed meanwhile
    calls[socket.peer] += CallsOfSocketJson(text);
    gpr_free(text);
  }
  return calls;
}

}  // namespace coordd
