#include "client/coordrun/agent/mpi_rank.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/coordrun/plan/thread_share.h"
#include "client/coordrun/plan/torch_variables.h"
#include "client/coordrun/plan/worker_environment.h"
#include "client/coordrun/process/master_port.h"
#include "client/coordrun/wire/host_look.h"
#include "client/coordrun/wire/torch_roster.h"
#include "common/base/atomic_file.h"
#include "common/base/mutex.h"
#include "common/base/refusal_line.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/launch/host_identity.h"
#include "common/launch/launch_facts.h"
#include "common/net/address.h"

namespace coordd {
namespace {

// Between two looks at the folder: a look is a request to a file server that all ranks ask.
constexpr absl::Duration kFirstLook = absl::Milliseconds(2);
constexpr absl::Duration kLongestLook = absl::Milliseconds(200);
constexpr size_t kShownRanks = 8;

constexpr char kPlacesFile[] = "places";
constexpr char kMasterFile[] = "master";

std::string SeatFile(int32_t rank) { return absl::StrCat("seat.", rank); }

std::string Text(const std::set<int32_t>& ranks) {
  std::vector<std::string> shown;
  for (const int32_t rank : ranks) {
    if (shown.size() == kShownRanks) break;
    shown.push_back(absl::StrCat(rank));
  }
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(shown, ", "),
                      ranks.size() > kShownRanks ? ", ..." : "");
}

// How one rank comes to its environment.
class MpiRankStart {
 public:
  MpiRankStart(const MpiRankRequest& request, Environment* environment, Clock& clock)
      : request_(request),
        environment_(*environment),
        clock_(clock),
        deadline_(clock.Now() + request.within) {}

  absl::Status Run() {
    COORDD_RETURN_IF_ERROR(FindOurselves());
    COORDD_RETURN_IF_ERROR(TakeSeat());
    if (launch_.rank == 0) COORDD_RETURN_IF_ERROR(PlaceAll());
    COORDD_RETURN_IF_ERROR(TakePlace());
    if (place_.rank == 0) COORDD_RETURN_IF_ERROR(PickMaster());
    COORDD_ASSIGN_OR_RETURN(const std::string line,
                            Await(kMasterFile, "where torch's rank 0 will listen"));
    COORDD_ASSIGN_OR_RETURN(const v1::TorchMasterOrder order, ParseMasterOrder(line));
    TorchMaster master = TorchMasterOf(order);
    if (master.address == kMasterAtCoordinator) master.address = coordinator_.host;
    SetVariables(master);
    return absl::OkStatus();
  }

 private:
  absl::Status FindOurselves() {
    COORDD_ASSIGN_OR_RETURN(launch_, MpiPlaceOf(environment_, ThisLaunchFacts()));
    int32_t expected = 0;
    const bool told = absl::SimpleAtoi(Variable(environment_, "COORDD_SIZE"), &expected);
    if (launch_.size < 0) launch_.size = expected;
    if (!told || launch_.size != expected) {
      return absl::FailedPreconditionError(
          absl::StrCat("mpirun has started ", launch_.size, " ranks: expected ",
                       Variable(environment_, "COORDD_SIZE"), ", as -np of coordrun says"));
    }
    // The first of several that stand by for each other.
    const std::vector<std::string> addresses =
        absl::StrSplit(Variable(environment_, "COORDD_ADDR"), ',');
    coordinator_ = ParseHostPort(addresses[0]).value_or(HostPort());
    return absl::OkStatus();
  }

  absl::Status TakeSeat() {
    if (access(request_.directory.c_str(), W_OK) != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("the folder ", request_.directory, " of this run cannot be used on ",
                       ThisHost("").hostname, " (", std::strerror(errno), "): ", HowToMeet()));
    }
    AgentMessage message;
    AgentReport& seat = *message.mutable_report();
    seat.set_number(launch_.rank);
    seat.set_version(kVersion);
    seat.set_node(ThisHost(Variable(environment_, "COORDD_NODE_ID")).node_id);
    seat.set_labels(Variable(environment_, "COORDD_TOPOLOGY"));
    LookAtCores(&seat);
    return Write(SeatFile(launch_.rank), Line(message));
  }

  absl::Status PlaceAll() {
    std::vector<AgentReport> seats(static_cast<size_t>(launch_.size));
    std::set<int32_t> missing;
    for (int32_t rank = 0; rank < launch_.size; ++rank) missing.insert(rank);
    absl::Status failure;
    const bool all = LookUntil([&] {
      for (auto rank = missing.begin(); rank != missing.end() && failure.ok();) {
        const std::optional<std::string> line = Read(SeatFile(*rank));
        if (!line) {
          ++rank;
          continue;
        }
        const auto message = ParseMessage(*line);
        failure.Update(message.status());
        if (message.ok()) seats[static_cast<size_t>(*rank)] = message->report();
        rank = missing.erase(rank);
      }
      return missing.empty() || !failure.ok();
    });
    COORDD_RETURN_IF_ERROR(failure);
    if (!all) {
      return absl::DeadlineExceededError(
          absl::StrCat(Text(missing), " of mpirun", missing.size() == 1 ? " has" : " have",
                       " not come within ", Within(), " (--start-timeout): ", HowToMeet()));
    }
    return Write(kPlacesFile, Line(PlacesOf(seats)));
  }

  absl::Status TakePlace() {
    COORDD_ASSIGN_OR_RETURN(const std::string text, Await(kPlacesFile, "which rank each will be"));
    COORDD_ASSIGN_OR_RETURN(const v1::MpiPlaces places, ParseMpiPlaces(text));
    for (const v1::TorchPlaceOrder& place : places.places())
      if (place.worker() == launch_.rank) place_ = TorchPlaceOf(place);
    for (const v1::MpiPlaces::Threads& threads : places.threads())
      if (threads.worker() == launch_.rank) threads_ = threads.threads();
    return absl::OkStatus();
  }

  absl::Status PickMaster() {
    COORDD_ASSIGN_OR_RETURN(port_,
                            MasterPort::Reserve(Variable(environment_, "COORDD_PORT_RANGE")));
    const std::string own = LocalAddressTowards(coordinator_).value_or("");
    // On coordd's own machine: the others know it by the address at which they reach coordd.
    const bool with_coordinator = own.empty() || own == coordinator_.host || IsLoopback(own);
    COORDD_RETURN_IF_ERROR(
        Write(kMasterFile,
              Line(MasterOrder({with_coordinator ? kMasterAtCoordinator : own, port_->port()}))));
    port_->KeepOverExec();
    return absl::OkStatus();
  }

  void SetVariables(const TorchMaster& master) {
    const std::vector<std::string> names =
        absl::StrSplit(Variable(environment_, kTorchMarker), ',', absl::SkipEmpty());
    Overlay(TorchVariables(names, place_, master), &environment_);
    Overlay(ThreadVariables(threads_, environment_), &environment_);
    // The hint says the same, so that coordd gives this rank.
    Overlay(PlaceVariables({.rank = place_.rank,
                            .size = place_.size,
                            .local_rank = place_.local_rank,
                            .local_size = place_.local_size}),
            &environment_);
  }

  // What rank 0 of mpirun, or of coordd, has written.
  absl::StatusOr<std::string> Await(const char* name, const char* what) {
    std::optional<std::string> text;
    if (LookUntil([&] { return (text = Read(name)).has_value(); })) return *std::move(text);
    return absl::DeadlineExceededError(absl::StrCat("mpirun's rank ", launch_.rank,
                                                    " has not heard ", what, " within ", Within(),
                                                    " (--start-timeout): ", HowToMeet()));
  }

  bool LookUntil(absl::FunctionRef<bool()> found) {
    for (absl::Duration pause = kFirstLook;; pause = std::min(2 * pause, kLongestLook)) {
      ListFolder();
      if (found()) return true;
      const absl::Time next = clock_.Now() + pause;
      if (next >= deadline_) return false;
      // Nobody signals: a wait on the clock.
      Mutex mu;
      CondVar never;
      MutexLock lock(&mu);
      clock_.Await(
          &mu, &never, [] { return false; }, next);
    }
  }

  // Without it a network file system may answer from memory that a file is not there.
  void ListFolder() const {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(request_.directory, error))
      static_cast<void>(entry);
  }

  std::optional<std::string> Read(const std::string& name) const {
    std::ifstream file(absl::StrCat(request_.directory, "/", name), std::ios::binary);
    std::ostringstream text;
    if (!file || !(text << file.rdbuf())) return std::nullopt;
    return text.str();
  }

  absl::Status Write(const std::string& name, const std::string& text) const {
    return WriteFileAtomically(absl::StrCat(request_.directory, "/", name), text, 0600);
  }

  std::string Within() const { return absl::StrCat(absl::ToDoubleSeconds(request_.within), " s"); }

  std::string HowToMeet() const {
    return absl::StrCat("expected all ranks to start, and to see ", request_.directory,
                        " (--run-dir names a folder that all hosts share); --no-torch-env starts "
                        "them without torch's variables");
  }

  // Constant after construction.
  const MpiRankRequest& request_;
  Environment& environment_;
  Clock& clock_;
  const absl::Time deadline_;

  LaunchPlace launch_;    // what mpirun says
  HostPort coordinator_;  // host empty: COORDD_ADDR is none
  TorchPlace place_;      // what coordd will say
  int32_t threads_ = 0;   // 0: not said
  std::optional<MasterPort> port_;
};

// The exit status.
int Become(const std::vector<std::string>& command, const Environment& environment) {
  std::vector<std::string> words = command, pairs;
  for (const auto& [name, value] : environment) pairs.push_back(absl::StrCat(name, "=", value));
  const auto pointers = [](std::vector<std::string>& strings) {
    std::vector<char*> result;
    for (std::string& string : strings) result.push_back(string.data());
    result.push_back(nullptr);
    return result;
  };
  execvpe(words[0].c_str(), pointers(words).data(), pointers(pairs).data());
  const int error = errno;
  const std::string why = absl::StrCat(words[0], " cannot be run: ", std::strerror(error));
  std::fputs(RefusalLine("coordrun", why).c_str(), stderr);
  return error == ENOENT ? 127 : 126;
}

}  // namespace

absl::StatusOr<LaunchPlace> MpiPlaceOf(const Environment& environment, const LaunchFacts& facts) {
  for (const char* name : {"openmpi", "mvapich2", "pals", "hydra"}) {
    auto place = DetectLaunchPlace(environment, facts, name);
    if (place.ok() && place->is_rank()) return place;
  }
  return absl::FailedPreconditionError(
      "mpirun has given this process no rank that is understood: expected OMPI_COMM_WORLD_RANK, "
      "MV2_COMM_WORLD_RANK, PALS_RANKID or PMI_RANK, each with its size; --no-torch-env starts the "
      "program without torch's variables");
}

v1::MpiPlaces PlacesOf(const std::vector<AgentReport>& seats) {
  const auto np = static_cast<int32_t>(seats.size());
  TorchRoster roster(/*wanted=*/true, np);
  std::map<std::string, int32_t> on_node;                          // ranks
  std::map<std::pair<std::string, std::string>, int32_t> on_cpus;  // those that share cores
  for (const AgentReport& seat : seats) {
    roster.Take({seat.number()}, seat);
    ++on_node[seat.node()];
    ++on_cpus[{seat.node(), seat.cpus()}];
  }
  roster.Arrange();
  v1::MpiPlaces places;
  for (const AgentReport& seat : seats) {
    for (v1::TorchPlaceOrder& place : roster.PlacesFor({seat.number()}))
      *places.add_places() = std::move(place);
    if (on_node[seat.node()] < 2) continue;
    const int32_t sharing = on_cpus[{seat.node(), seat.cpus()}];
    v1::MpiPlaces::Threads& threads = *places.add_threads();
    threads.set_worker(seat.number());
    threads.set_threads(sharing < 2 ? seat.cores() : ThreadsEach(seat.cores(), sharing));
  }
  return places;
}

int RunMpiRank(const MpiRankRequest& request, Environment environment, Clock& clock) {
  MpiRankStart start(request, &environment, clock);  // holds a port
  const absl::Status status = start.Run();
  if (status.ok()) return Become(request.command, environment);
  std::fputs(RefusalLine("coordrun", status.message()).c_str(), stderr);
  return 1;
}

}  // namespace coordd
