#include "client/coordrun/wire/agent_messages.h"

#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace coordd {
namespace {

using Json = nlohmann::ordered_json;

// An environment may hold any bytes, JSON holds UTF-8: each byte travels as the code point of its
// value, so that all of them arrive.
std::string Widen(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text.push_back(c);
    } else {
      text.push_back(static_cast<char>(0xc0 | (byte >> 6)));
      text.push_back(static_cast<char>(0x80 | (byte & 0x3f)));
    }
  }
  return text;
}

std::string Narrow(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto first = static_cast<unsigned char>(text[i]);
    if (first < 0x80 || i + 1 == text.size()) {
      bytes.push_back(text[i]);
    } else {
      const auto second = static_cast<unsigned char>(text[++i]);
      bytes.push_back(static_cast<char>(((first & 0x03) << 6) | (second & 0x3f)));
    }
  }
  return bytes;
}

Json WideList(const std::vector<std::string>& list) {
  Json json = Json::array();
  for (const std::string& text : list) json.push_back(Widen(text));
  return json;
}

Json WideMap(const Environment& environment) {
  Json json = Json::object();
  for (const auto& [name, value] : environment) json[Widen(name)] = Widen(value);
  return json;
}

std::vector<std::string> NarrowList(const Json& json) {
  std::vector<std::string> list;
  for (const Json& item : json) list.push_back(Narrow(item.get<std::string>()));
  return list;
}

Environment NarrowMap(const Json& json) {
  Environment environment;
  for (const auto& [name, value] : json.items()) {
    environment[Narrow(name)] = Narrow(value.get<std::string>());
  }
  return environment;
}

std::string Text(const Json& json, const char* name) {
  return Narrow(json.at(name).get<std::string>());
}

Json ReportJson(const AgentReport& report) {
  return {{"type", "report"},
          {"protocol", report.protocol},
          {"number", report.number},
          {"version", report.version},
          {"host", Widen(report.host)},
          {"problem", Widen(report.problem)},
          {"coordinator", report.coordinator},
          {"workers", report.workers},
          {"local_size", report.local_size},
          {"unix_seconds", report.unix_seconds},
          {"cores", report.cores},
          {"cpus", report.cpus},
          {"gpus", WideList(report.gpus)},
          {"visible_gpus", report.visible_gpus},
          {"nccl", report.nccl},
          {"ucx", report.ucx},
          {"marker_seen", report.marker_seen},
          {"node", Widen(report.node)},
          {"labels", Widen(report.labels)},
          {"address", report.address},
          {"master_port", report.master_port},
          {"first_local", report.first_local}};
}

AgentReport ReportFrom(const Json& json) {
  AgentReport report;
  report.protocol = json.at("protocol").get<int>();
  report.number = json.at("number").get<int32_t>();
  report.version = Text(json, "version");
  report.host = Text(json, "host");
  report.problem = Text(json, "problem");
  // What follows may differ between revisions.
  if (report.protocol != kAgentProtocol) return report;
  report.coordinator = Text(json, "coordinator");
  report.workers = json.at("workers").get<int32_t>();
  report.local_size = json.at("local_size").get<int32_t>();
  report.unix_seconds = json.at("unix_seconds").get<double>();
  report.cores = json.at("cores").get<int32_t>();
  report.cpus = Text(json, "cpus");
  report.gpus = NarrowList(json.at("gpus"));
  report.visible_gpus = json.at("visible_gpus").get<int32_t>();
  report.nccl = Text(json, "nccl");
  report.ucx = Text(json, "ucx");
  report.marker_seen = json.at("marker_seen").get<bool>();
  report.node = Text(json, "node");
  report.labels = Text(json, "labels");
  report.address = Text(json, "address");
  report.master_port = json.at("master_port").get<int32_t>();
  report.first_local = json.at("first_local").get<int32_t>();
  return report;
}

AgentOrders OrdersFrom(const Json& json) {
  AgentOrders orders;
  orders.identity =
      Text(json, "identity") == "slurm" ? AgentIdentity::kSlurm : AgentIdentity::kListed;
  orders.number = json.at("number").get<int32_t>();
  orders.command = NarrowList(json.at("command"));
  orders.directory = Text(json, "directory");
  orders.environment = NarrowMap(json.at("environment"));
  orders.unset = NarrowList(json.at("unset"));
  for (const Json& file : json.at("files")) {
    orders.files.push_back({Text(file, "variable"), Text(file, "name"), Text(file, "contents")});
  }
  for (const Json& worker : json.at("workers")) {
    orders.workers.push_back(
        {worker.at("index").get<int32_t>(), NarrowMap(worker.at("environment"))});
  }
  orders.coordinators = NarrowList(json.at("coordinators"));
  orders.marker = Text(json, "marker");
  orders.look = json.at("look").get<bool>();
  orders.stay = json.at("stay").get<bool>();
  orders.relay = json.at("relay").get<bool>();
  orders.torch = NarrowList(json.at("torch"));
  orders.port_range = Text(json, "port_range");
  return orders;
}

AgentMessage MessageFrom(const Json& json) {
  const std::string type = Text(json, "type");
  if (type == "report") return ReportFrom(json);
  if (type == "started") {
    return WorkerStartedMessage{json.at("worker").get<int32_t>(), json.at("pid").get<pid_t>(),
                                Text(json, "launch")};
  }
  if (type == "ended") {
    WorkerEndedMessage message;
    message.worker = json.at("worker").get<int32_t>();
    message.end.code = json.at("code").get<int>();
    message.end.signal = json.at("signal").get<int>();
    return message;
  }
  if (type == "port") return PortMessage{json.at("port").get<uint16_t>()};
  return CannotRunMessage{json.at("status").get<int>(), Text(json, "reason"),
                          json.at("worker").get<int32_t>()};
}

absl::Status Malformed(absl::string_view text, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat("an agent's message begins with '",
                                                 text.substr(0, 60), "': ", why,
                                                 "; expected coordrun's JSON"));
}

}  // namespace

std::string SignalOrder(int signal) { return absl::StrCat("signal ", signal); }

std::string SignalOneOrder(int32_t worker, int signal) {
  return absl::StrCat("signal ", signal, " ", worker);
}

std::string RestartOrder(int32_t worker) { return absl::StrCat("restart ", worker); }

int ParseSignalOrder(absl::string_view line, int32_t* worker) {
  int signal = 0;
  *worker = -1;
  if (!absl::ConsumePrefix(&line, "signal ")) return 0;
  const size_t space = line.find(' ');
  if (space != absl::string_view::npos) {
    if (!absl::SimpleAtoi(line.substr(space + 1), worker) || *worker < 0) return 0;
    line = line.substr(0, space);
  }
  if (!absl::SimpleAtoi(line, &signal)) return 0;
  return signal > 0 && signal < 65 ? signal : 0;
}

int32_t ParseRestartOrder(absl::string_view line) {
  int32_t worker = -1;
  if (!absl::ConsumePrefix(&line, "restart ") || !absl::SimpleAtoi(line, &worker)) return -1;
  return worker < 0 ? -1 : worker;
}

std::string PortOrder(int32_t agent) { return absl::StrCat("port ", agent); }

std::string PlaceOrder(int32_t worker, const TorchPlace& place) {
  return absl::StrCat("place ", worker, " ", place.rank, " ", place.size, " ", place.local_rank,
                      " ", place.local_size, " ", place.group_rank);
}

std::string MasterOrder(const TorchMaster& master) {
  return absl::StrCat("master ", master.address, " ", master.port);
}

int32_t ParsePortOrder(absl::string_view line) {
  int32_t agent = -1;
  if (!absl::ConsumePrefix(&line, "port ") || !absl::SimpleAtoi(line, &agent)) return -1;
  return agent < 0 ? -1 : agent;
}

bool ParsePlaceOrder(absl::string_view line, int32_t* worker, TorchPlace* place) {
  if (!absl::ConsumePrefix(&line, "place ")) return false;
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  int32_t* const numbers[] = {worker,
                              &place->rank,
                              &place->size,
                              &place->local_rank,
                              &place->local_size,
                              &place->group_rank};
  if (words.size() != std::size(numbers)) return false;
  for (size_t i = 0; i < words.size(); ++i)
    if (!absl::SimpleAtoi(words[i], numbers[i]) || *numbers[i] < 0) return false;
  return true;
}

bool ParseMasterOrder(absl::string_view line, TorchMaster* master) {
  if (!absl::ConsumePrefix(&line, "master ")) return false;
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  int32_t port = 0;
  if (words.size() != 2 || words[0].empty() || !absl::SimpleAtoi(words[1], &port)) return false;
  if (port <= 0 || port > 65535) return false;
  *master = {std::string(words[0]), static_cast<uint16_t>(port)};
  return true;
}

std::string OrdersLine(const AgentOrders& orders) {
  Json files = Json::array(), workers = Json::array();
  for (const OrderedFile& file : orders.files) {
    files.push_back(
        {{"variable", file.variable}, {"name", file.name}, {"contents", Widen(file.contents)}});
  }
  for (const OrderedWorker& worker : orders.workers) {
    workers.push_back({{"index", worker.index}, {"environment", WideMap(worker.environment)}});
  }
  const Json json = {{"protocol", orders.protocol},
                     {"identity", orders.identity == AgentIdentity::kSlurm ? "slurm" : "listed"},
                     {"number", orders.number},
                     {"command", WideList(orders.command)},
                     {"directory", Widen(orders.directory)},
                     {"environment", WideMap(orders.environment)},
                     {"unset", WideList(orders.unset)},
                     {"files", std::move(files)},
                     {"workers", std::move(workers)},
                     {"coordinators", WideList(orders.coordinators)},
                     {"marker", Widen(orders.marker)},
                     {"look", orders.look},
                     {"stay", orders.stay},
                     {"relay", orders.relay},
                     {"torch", WideList(orders.torch)},
                     {"port_range", orders.port_range}};
  return json.dump();
}

std::string MessageLine(const AgentMessage& message) {
  Json json;
  if (const auto* report = std::get_if<AgentReport>(&message)) {
    json = ReportJson(*report);
  } else if (const auto* started = std::get_if<WorkerStartedMessage>(&message)) {
    json = {{"type", "started"},
            {"worker", started->worker},
            {"pid", started->pid},
            {"launch", Widen(started->launch)}};
  } else if (const auto* ended = std::get_if<WorkerEndedMessage>(&message)) {
    json = {{"type", "ended"},
            {"worker", ended->worker},
            {"code", ended->end.code},
            {"signal", ended->end.signal}};
  } else if (const auto* port = std::get_if<PortMessage>(&message)) {
    json = {{"type", "port"}, {"port", port->port}};
  } else {
    const auto& cannot = std::get<CannotRunMessage>(message);
    json = {{"type", "cannot"},
            {"status", cannot.status},
            {"reason", Widen(cannot.reason)},
            {"worker", cannot.worker}};
  }
  return json.dump();
}

absl::StatusOr<AgentOrders> ParseOrders(absl::string_view line) {
  const Json json = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("protocol")) return Malformed(line, "it has no protocol");
  try {
    if (const int protocol = json.at("protocol").get<int>(); protocol != kAgentProtocol) {
      return absl::FailedPreconditionError(absl::StrCat("coordrun speaks revision ", protocol,
                                                        " of the agents' protocol, expected ",
                                                        kAgentProtocol));
    }
    AgentOrders orders = OrdersFrom(json);
    if (orders.command.empty()) return Malformed(line, "it has no command");
    return orders;
  } catch (const Json::exception& error) {
    return Malformed(line, error.what());
  }
}

absl::StatusOr<AgentMessage> ParseMessage(absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("type")) return Malformed(text, "it has no type");
  try {
    return MessageFrom(json);
  } catch (const Json::exception& error) {
    return Malformed(text, error.what());
  }
}

}  // namespace coordd
