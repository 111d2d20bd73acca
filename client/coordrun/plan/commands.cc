#include "client/coordrun/plan/commands.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/shell_word.h"

namespace coordd {
namespace {

constexpr int kNotFound = 127;

void Append(const std::vector<std::string>& more, std::vector<std::string>* command) {
  command->insert(command->end(), more.begin(), more.end());
}

bool Says(const std::vector<std::string>& said, absl::string_view what) {
  return std::any_of(said.begin(), said.end(), [what](const std::string& line) {
    return absl::StrContains(absl::AsciiStrToLower(line), absl::AsciiStrToLower(what));
  });
}

bool ByBlaunch(const RunOptions& options) { return options.launcher == "blaunch"; }

// The last line with something in it.
std::string LastWords(const std::vector<std::string>& said) {
  for (auto line = said.rbegin(); line != said.rend(); ++line) {
    const absl::string_view text = absl::StripAsciiWhitespace(*line);
    if (!text.empty()) return std::string(text);
  }
  return "it said nothing";
}

struct SshFailure {
  const char* sign;      // in what ssh says
  const char* sentence;  // after the host's name
};

constexpr SshFailure kSshFailures[] = {
    {"REMOTE HOST IDENTIFICATION HAS CHANGED",
     "its key is not the one that is known (~/.ssh/known_hosts): if it was reinstalled, remove the "
     "old key with ssh-keygen -R; else somebody may be in between"},
    {"Host key verification failed",
     "its key is not known here: log in once with ssh and look at the fingerprint, or add the key "
     "to known_hosts (another file: --launcher-arg=-oUserKnownHostsFile=FILE)"},
    {"Permission denied",
     "it refuses the login: expected a key that works without a password (ssh-copy-id; "
     "--ssh-identity-file)"},
    {"Too many authentication failures",
     "it refuses the login after too many keys: name the right one with --ssh-identity-file"},
    {"Could not resolve hostname",
     "this name is not known: check the spelling, DNS or ~/.ssh/config"},
    {"Connection refused", "no ssh server listens there: check the host and --ssh-port"},
    {"Connection timed out",
     "it does not answer: check that it is up and that no firewall is between"},
    {"No route to host", "there is no way to it in the network: check that it is up"},
    {"Network is unreachable", "there is no way to it in the network"},
    {"No such file or directory (identity)", "the key of --ssh-identity-file is not there"},
};

// What srun says of a job that has ended, or where Slurm cannot be asked.
constexpr const char* kUnknownJob[] = {"Invalid job id",
                                       "invalid job",
                                       "already completing or completed",
                                       "Unable to confirm allocation",
                                       "Could not establish a configuration source",
                                       "Unable to contact slurm controller",
                                       "Access/permission denied"};

}  // namespace

std::string Quoted(const std::string& word) { return ShellWord(word); }

std::string Quoted(const std::vector<std::string>& command) {
  return absl::StrJoin(command, " ", [](std::string* out, const std::string& word) {
    absl::StrAppend(out, Quoted(word));
  });
}

std::vector<std::string> AgentCommand(const std::string& self) { return {self, "--agent"}; }

std::vector<std::string> CommandToHost(const RunOptions& options, const HostRanks& host,
                                       const std::string& self) {
  const std::string there = options.remote_coordrun.empty() ? self : options.remote_coordrun;
  const std::string script = options.remote_coordrun.empty()
                                 ? absl::StrCat("test -x ", Quoted(there), " && exec ",
                                                Quoted(there), " --agent; exec coordrun --agent")
                                 : absl::StrCat("exec ", Quoted(there), " --agent");
  if (ByBlaunch(options)) {
    // It starts the command without a shell, and hands its own stdin on.
    std::vector<std::string> command = {"blaunch"};
    Append(options.launcher_arguments, &command);
    Append({host.host, "sh", "-c", script}, &command);
    return command;
  }
  std::vector<std::string> command = {"ssh", "-T", "-x",
                                      // Nobody is there to answer questions.
                                      "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
                                      // A host that is switched off is noticed within a minute.
                                      "-o", "ServerAliveInterval=15", "-o",
                                      "ServerAliveCountMax=4"};
  if (options.ssh_port != 0) Append({"-p", absl::StrCat(options.ssh_port)}, &command);
  if (!options.ssh_identity.empty()) Append({"-i", options.ssh_identity}, &command);
  Append(options.launcher_arguments, &command);
  command.push_back("--");  // what follows is no option, whatever it looks like
  command.push_back(host.user.empty() ? host.host : absl::StrCat(host.user, "@", host.host));
  // Whatever the login shell there is.
  command.push_back(absl::StrCat("exec sh -c ", Quoted(script)));
  return command;
}

std::vector<std::string> SrunCommand(const RunOptions& options, const RunPlan& plan,
                                     const std::string& self) {
  std::vector<std::string> command = {"srun",
                                      absl::StrCat("--ntasks=", plan.np),
                                      "--input=all",  // orders for every task
                                      "--mpi=none",
                                      "--kill-on-bad-exit=0",  // coordrun decides how a run ends
                                      "--wait=0"};
  // A node that fails ends its own tasks only, where the allocation allows it, too.
  if (options.min_np > 0) command.push_back("--no-kill");
  if (plan.cpus_per_task > 0) {
    command.push_back(absl::StrCat("--cpus-per-task=", plan.cpus_per_task));
  }
  if (plan.tasks_per_node > 0) {
    command.push_back(absl::StrCat("--ntasks-per-node=", plan.tasks_per_node));
  }
  if (!options.directory.empty()) command.push_back(absl::StrCat("--chdir=", options.directory));
  Append(options.launcher_arguments, &command);
  Append(AgentCommand(options.remote_coordrun.empty() ? self : options.remote_coordrun), &command);
  return command;
}

MpiLibrary MpiLibraryFrom(const std::string& version_text) {
  return absl::StrContains(version_text, "Open MPI") ||
                 absl::StrContains(version_text, "OpenRTE") ||
                 absl::StrContains(version_text, "PRRTE")
             ? MpiLibrary::kOpenMpi
             : MpiLibrary::kHydra;
}

std::vector<std::string> MpiRankCommand(const RunOptions& options, const RunPlan& plan,
                                        const std::string& self, const std::string& folder) {
  if (folder.empty()) return options.command;
  std::vector<std::string> command;
  // As over ssh: the same path as here, else PATH.
  if (!options.remote_coordrun.empty()) {
    command = {options.remote_coordrun};
  } else if (plan.hosts.empty()) {
    command = {self};
  } else {
    command = {"sh", "-c", R"(test -x "$0" && exec "$0" "$@"; exec coordrun "$@")", self};
  }
  Append({"--mpi-rank", folder, "--start-timeout",
          absl::StrCat(absl::ToDoubleSeconds(options.start_timeout)), "--"},
         &command);
  Append(options.command, &command);
  return command;
}

std::vector<std::string> MpirunCommand(const RunOptions& options, const RunPlan& plan,
                                       MpiLibrary library,
                                       const std::vector<std::string>& variables,
                                       const std::vector<std::string>& rank_command) {
  const bool open = library == MpiLibrary::kOpenMpi;
  std::vector<std::string> command = {"mpirun", open ? "-np" : "-n", absl::StrCat(plan.np)};
  if (!plan.hosts.empty()) {
    std::vector<std::string> hosts;
    for (const HostRanks& host : plan.hosts) {
      hosts.push_back(absl::StrCat(host.host, ":", host.count));
    }
    Append({open ? "-H" : "-hosts", absl::StrJoin(hosts, ",")}, &command);
  }
  command.push_back(open ? "--tag-output" : "-prepend-rank");
  if (open) {
    for (const std::string& name : variables) Append({"-x", name}, &command);
  } else if (!variables.empty()) {
    Append({"-genvlist", absl::StrJoin(variables, ",")}, &command);
  }
  if (!options.directory.empty()) Append({"-wdir", options.directory}, &command);
  Append(options.launcher_arguments, &command);
  Append(rank_command, &command);
  return command;
}

std::string ExplainToHost(const RunOptions& options, const std::string& host, const ProcessEnd& end,
                          const std::vector<std::string>& said) {
  const bool by_blaunch = ByBlaunch(options);
  if (by_blaunch && Says(said, "blaunch: command not found"))
    return absl::StrCat("host ", host, ": there is no blaunch here: it is a part of LSF");
  if (!by_blaunch) {
    for (const SshFailure& failure : kSshFailures) {
      if (Says(said, failure.sign)) return absl::StrCat("host ", host, ": ", failure.sentence);
    }
  }
  if (end.code == kNotFound || Says(said, "coordrun: not found") ||
      Says(said, "coordrun: command not found")) {
    return absl::StrCat("host ", host,
                        ": coordrun is not there, neither at the same path as here nor in PATH: "
                        "install coordd on it, or say where it is with --remote-coordrun");
  }
  return absl::StrCat("host ", host, by_blaunch ? ": blaunch " : ": ssh ", end.ToString(), ": ",
                      LastWords(said));
}

std::string ExplainSrun(const ProcessEnd& end, const std::vector<std::string>& said,
                        const std::string& leftover) {
  if (Says(said, "Requested node configuration is not available") ||
      Says(said, "More processors requested than permitted")) {
    return absl::StrCat(
        "srun could not start the workers: the allocation has no room for so many "
        "tasks; expected a smaller -np, or a larger --ntasks of the job (",
        LastWords(said), ")");
  }
  const bool is_unknown = std::any_of(std::begin(kUnknownJob), std::end(kUnknownJob),
                                      [&said](const char* sign) { return Says(said, sign); });
  const bool hint = is_unknown && !leftover.empty();
  return absl::StrCat("srun could not start the workers: it ", end.ToString(), ": ",
                      LastWords(said), hint ? "; " : "", hint ? leftover : "");
}

}  // namespace coordd
