#include "client/coordrun/crews/agent_crew.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/version.h"

namespace coordd {
namespace {

// An agent kills its workers within milliseconds: what takes longer is the connection.
constexpr absl::Duration kKillWithin = absl::Seconds(2);
constexpr size_t kMaxProblems = 16;  // more than a screen helps nobody

std::string HostText(const std::string& host) { return absl::StrCat("host ", host); }

std::string Named(const ChannelRequest& request) {
  if (request.shared) return request.host;
  return request.host.empty() ? "this machine" : HostText(request.host);
}

}  // namespace

AgentCrew::AgentCrew(AgentCrewOptions options)
    : options_(std::move(options)), torch_(options_.torch, options_.np) {
  for (const ChannelRequest& request : options_.channels) {
    hosts_.push_back(std::make_unique<Host>(request));
  }
}

absl::Status AgentCrew::Connect(absl::Time now) {
  OpenMore(now);
  return absl::OkStatus();
}

size_t AgentCrew::opening() const {
  return static_cast<size_t>(std::count_if(hosts_.begin(), hosts_.end(), [](const auto& host) {
    return host->channel.opened() && !host->failed &&
           host->answered < host->channel.request().agents;
  }));
}

void AgentCrew::OpenMore(absl::Time now) {
  size_t open = opening();
  for (const auto& host : hosts_) {
    if (open >= options_.parallel) return;
    if (host->channel.opened() || host->failed) continue;
    host->asked = now;
    if (const absl::Status status = host->channel.Open(); !status.ok()) {
      Fail(*host, absl::StrCat(Named(host->channel.request()), ": ", status.message(),
                               options_.cannot_open.empty() ? "" : "; ", options_.cannot_open));
    } else {
      ++open;
    }
  }
}

void AgentCrew::Fail(Host& host, const std::string& sentence) {
  // Agents of one channel often have the same to say.
  if (std::find(problems_.begin(), problems_.end(), sentence) == problems_.end()) {
    problems_.push_back(sentence);
  }
  host.failed = true;
  host.problem = sentence;
}

bool AgentCrew::ready() const {
  return std::all_of(hosts_.begin(), hosts_.end(), [](const auto& host) {
    return host->failed || host->answered >= host->channel.request().agents;
  });
}

absl::Status AgentCrew::failure() const {
  if (problems_.empty()) return absl::OkStatus();
  std::vector<std::string> told(problems_.begin(),
                                problems_.begin() + std::min(problems_.size(), kMaxProblems));
  if (problems_.size() > kMaxProblems) {
    told.push_back(absl::StrCat("and ", problems_.size() - kMaxProblems, " more"));
  }
  return absl::UnavailableError(absl::StrJoin(told, "\ncoordrun: "));
}

std::vector<HostReport> AgentCrew::reports() const {
  std::vector<HostReport> reports = reports_;
  std::sort(reports.begin(), reports.end(), [](const HostReport& a, const HostReport& b) {
    return a.report.number() < b.report.number();
  });
  return reports;
}

std::string AgentCrew::Missing() const {
  std::vector<std::string> missing;
  for (const auto& host : hosts_) {
    if (host->failed || host->answered >= host->channel.request().agents) continue;
    if (missing.size() == kMaxProblems) break;
    std::string text = Named(host->channel.request());
    if (const size_t agents = host->channel.request().agents; agents > 1) {
      text = absl::StrCat(agents - host->answered, " of ", agents, " tasks");
    }
    const auto& noise = host->channel.noise().lines();
    missing.push_back(noise.empty() ? text : absl::StrCat(text, " (it says: ", noise.back(), ")"));
  }
  return absl::StrJoin(missing, ", ");
}

bool AgentCrew::SetAside(int32_t least, absl::string_view silence) {
  const auto usable = [](const auto& host) {
    return !host->failed && host->answered >= host->channel.request().agents;
  };
  size_t workers = 0;
  for (const auto& host : hosts_)
    if (usable(host)) workers += host->channel.request().workers.size();
  if (workers == 0 || workers < static_cast<size_t>(least)) return false;
  for (const auto& host : hosts_) {
    if (usable(host)) continue;
    if (!host->failed) Fail(*host, absl::StrCat(Named(host->channel.request()), ": ", silence));
    host->channel.Signal(SIGKILL);
  }
  return true;
}

absl::Status AgentCrew::Start(CrewEvents& events) {
  started_ = true;
  torch_.Arrange();
  for (const auto& host : hosts_) {
    if (host->failed) {
      EndWorkersOf(*host, events);
      continue;
    }
    const ChannelRequest& request = host->channel.request();
    for (const AgentOrder& order : torch_.OrdersFor(request.workers, request.shared))
      host->channel.Write(Line(order));
    host->channel.Write(Line(StartOrder()));
  }
  return absl::OkStatus();
}

// Its answer is there before a worker is started again, which takes a second at least.
void AgentCrew::RenewMaster() {
  const int32_t agent = torch_.master_agent();
  if (agent < 0) return;
  for (const auto& host : hosts_) {
    if (host->failed || host->finished || host->channel.end().has_value()) continue;
    host->channel.Write(Line(PortOrder(agent)));  // only that one answers
  }
}

AgentCrew::Host* AgentCrew::HostOf(int32_t worker) const {
  for (auto host = hosts_.rbegin(); host != hosts_.rend(); ++host) {
    const auto& workers = (*host)->channel.request().workers;
    if (std::find(workers.begin(), workers.end(), worker) != workers.end()) return host->get();
  }
  return nullptr;
}

absl::Status AgentCrew::Restart(int32_t worker, CrewEvents& /*events*/) {
  Host* host = HostOf(worker);
  const bool usable = host != nullptr && !host->failed && !host->finished &&
                      !host->channel.over() && !host->channel.end().has_value();
  if (!usable) return OpenTo(worker);
  host->released.erase(worker);
  host->alive.insert(worker);
  if (const auto master = torch_.Master()) {
    AgentOrder order;
    *order.mutable_master() = *master;
    host->channel.Write(Line(order));
  }
  host->channel.Write(Line(RestartOrder(worker)));
  return absl::OkStatus();
}

// Its agent's report is answered with the order to start.
absl::Status AgentCrew::OpenTo(int32_t worker) {
  if (options_.channel_of == nullptr)
    return absl::UnavailableError("the connection to its host has ended");
  auto host = std::make_unique<Host>(options_.channel_of(worker));
  if (const absl::Status status = host->channel.Open(); !status.ok()) return status;
  hosts_.push_back(std::move(host));
  RenewMaster();
  return absl::OkStatus();
}

void AgentCrew::Release(int32_t worker) {
  Host* host = HostOf(worker);
  if (host == nullptr || host->finished) return;
  host->released.insert(worker);
  if (host->released.size() < host->channel.request().workers.size()) return;
  host->finished = true;
  host->channel.Write(Line(FinishOrder()));
}

void AgentCrew::Finish() {
  for (const auto& host : hosts_) {
    host->finished = true;
    host->channel.Write(Line(FinishOrder()));
  }
}

void AgentCrew::SignalOne(int32_t worker, int signal) {
  if (Host* host = HostOf(worker); host != nullptr)
    host->channel.Write(Line(SignalOrder(signal, worker)));
}

void AgentCrew::Await(std::vector<pollfd>& fds) {
  for (const auto& host : hosts_) host->channel.Await(fds);
}

void AgentCrew::Handle(absl::Span<const pollfd> fds, absl::Time now, CrewEvents& events) {
  for (size_t i = 0; i < hosts_.size(); ++i) {
    Host& host = *hosts_[i];
    const AgentChannel::Heard heard = {
        .frame = [&](const Frame& frame) { Take(host, frame, now, events); },
        .noise =
            [&](absl::string_view line) {
              const bool is_there = started_ && host.answered > 0;
              if (!options_.verbose && !is_there) return;  // it is in the account of the failure
              events.Notice(absl::StrCat("[", Named(host.channel.request()), "] ", line));
            }};
    const bool was_over = host.channel.over();
    host.channel.Handle(fds.subspan(i * AgentChannel::kEntries, AgentChannel::kEntries), heard);
    if (!was_over && host.channel.over()) TakeEnd(host, events);
  }
  if (!started_) OpenMore(now);
  if (now < cut_off_) return;
  cut_off_ = absl::InfiniteFuture();
  for (const auto& host : hosts_) host->channel.Signal(SIGKILL);
}

void AgentCrew::Take(Host& host, const Frame& frame, absl::Time now, CrewEvents& events) {
  if (frame.kind != FrameKind::kControl) {
    const auto& workers = host.channel.request().workers;
    if (std::find(workers.begin(), workers.end(), frame.source) == workers.end()) return;
    const auto piece = ParsePieceText(frame.text);
    if (piece.has_value())
      events.WorkerSaid(frame.source, frame.kind == FrameKind::kOut ? Stream::kOut : Stream::kErr,
                        *piece);
    return;
  }
  if (const auto message = ParseMessage(frame.text); message.ok()) {
    TakeMessage(host, frame.source, *message, now, events);
  } else {
    Fail(host, absl::StrCat(Named(host.channel.request()), ": ", message.status().message()));
  }
}

std::string AgentCrew::Where(const Host& host, int32_t number) const {
  if (!host.channel.request().shared) return host.channel.request().host;
  for (const HostReport& known : reports_) {
    if (known.report.number() == number) return known.report.host();
  }
  return "";
}

void AgentCrew::TakeMessage(Host& host, int32_t agent, const AgentMessage& message, absl::Time now,
                            CrewEvents& events) {
  switch (message.message_case()) {
    case AgentMessage::kReport:
      return TakeReport(host, message.report(), now);
    case AgentMessage::kStarted: {
      const AgentMessage::Started& started = message.started();
      if (host.alive.count(started.worker()) == 0) return;
      return events.WorkerStarted(started.worker(), Where(host, agent), started.pid(),
                                  started.launch());
    }
    case AgentMessage::kEnded: {
      const ProcessEnd end = {.code = message.ended().code(), .signal = message.ended().signal()};
      if (host.alive.erase(message.ended().worker()) == 0) return;
      if (!end.ok()) RenewMaster();
      return events.WorkerEnded(message.ended().worker(), end);
    }
    case AgentMessage::kCannotRun:
      return TakeCannotRun(host, agent, message.cannot_run(), events);
    case AgentMessage::kPort:
      return torch_.TakePort(agent, static_cast<uint16_t>(message.port()));
    case AgentMessage::MESSAGE_NOT_SET:
      break;
  }
}

void AgentCrew::TakeCannotRun(Host& host, int32_t agent, const AgentMessage::CannotRun& cannot,
                              CrewEvents& events) {
  const std::string where = Where(host, agent);
  events.Notice(
      absl::StrCat("coordrun: ", where.empty() ? "" : HostText(where) + ": ", cannot.reason()));
  const bool shared = host.channel.request().shared;
  const bool one = cannot.worker() >= 0;
  // A copy: they are erased.
  const std::set<int32_t> concerned = one      ? std::set<int32_t>{cannot.worker()}
                                      : shared ? std::set<int32_t>{agent}
                                               : host.alive;
  for (const int32_t worker : concerned) {
    if (host.alive.erase(worker) > 0)
      events.WorkerEnded(worker, {.code = cannot.status(), .signal = 0});
  }
}

void AgentCrew::TakeReport(Host& host, const AgentReport& report, absl::Time now) {
  const ChannelRequest& request = host.channel.request();
  const std::string name = request.shared ? HostText(report.host()) : Named(request);
  ++host.answered;
  if (host.failed) return;  // it was set aside
  if (report.protocol() != kAgentProtocol) {
    return Fail(host, absl::StrCat(name, ": its coordrun is of version ", report.version(),
                                   ", which this one (", kVersion,
                                   ") cannot work with; install the same version on all hosts"));
  }
  if (!report.problem().empty()) return Fail(host, absl::StrCat(name, ": ", report.problem()));
  reports_.push_back({report, request.host, host.asked, now});
  if (!request.shared) host.agent = report.number();
  torch_.Take(request.shared ? std::vector<int32_t>{report.number()} : request.workers, report);
  if (!started_) return;
  // It came later than the others.
  for (const AgentOrder& order : torch_.OrdersFor(request.workers, request.shared))
    host.channel.Write(Line(order));
  host.channel.Write(Line(StartOrder()));
}

void AgentCrew::TakeEnd(Host& host, CrewEvents& events) {
  const ChannelRequest& request = host.channel.request();
  const std::vector<std::string> noise(host.channel.noise().lines().begin(),
                                       host.channel.noise().lines().end());
  if (!host.failed && host.answered < request.agents) {
    Fail(host, options_.explain(request, *host.channel.end(), noise));
  }
  torch_.Lose(host.agent);
  if (started_) EndWorkersOf(host, events);
}

void AgentCrew::EndWorkersOf(Host& host, CrewEvents& events) {
  if (host.alive.empty()) return;
  const ChannelRequest& request = host.channel.request();
  const auto& noise = host.channel.noise().lines();
  if (host.failed) {
    if (told_.insert(host.problem).second) events.Notice(absl::StrCat("coordrun: ", host.problem));
  } else if (cut_off_ == absl::InfiniteFuture()) {
    events.Notice(absl::StrCat("coordrun: ", Named(request), ": the connection has ended (",
                               request.command[0], " ", host.channel.end()->ToString(),
                               noise.empty() ? "" : ": ", noise.empty() ? "" : noise.back(),
                               ") while ", host.alive.size(),
                               " of its workers ran; they are ended there"));
  }
  for (const int32_t worker : std::exchange(host.alive, {})) {
    ProcessEnd end = host.channel.end().value_or(ProcessEnd());
    end.lost = true;
    end.unreached = host.failed && host.answered == 0;
    events.WorkerEnded(worker, end);
  }
}

void AgentCrew::Signal(int signal, absl::Time now) {
  for (const auto& host : hosts_) host->channel.Write(Line(SignalOrder(signal)));
  if (signal == SIGKILL) cut_off_ = std::min(cut_off_, now + kKillWithin);
}

bool AgentCrew::drained() const {
  return std::all_of(hosts_.begin(), hosts_.end(),
                     [](const auto& host) { return host->channel.drained(); });
}

void AgentCrew::KillAll() {
  // The agents end their workers when their stdin ends.
  for (const auto& host : hosts_) host->channel.Close();
  for (const auto& host : hosts_) host->channel.Kill();
}

}  // namespace coordd
