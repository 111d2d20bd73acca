#include "client/coordctl/command_options.h"

namespace coordd {

CLI::App* AddCertsCommand(CLI::App& app, CertsArguments* arguments) {
  CLI::App* certs = app.add_subcommand(
      "certs",
      "Make a small certificate authority with certificates for coordd, for workers and for "
      "operators; or, with --role, one more certificate of the authority in DIR");
  certs->add_option("DIR", arguments->directory, "where to; nothing is overwritten")->required();
  certs->add_option("--role", arguments->role,
                    "what coordd lets its bearer do: operator (everything), launcher (its own "
                    "jobs), worker (be one of a job), node (a relay), viewer (look)");
  certs->add_option("--name", arguments->names,
                    "a host name or address of coordd, besides localhost (may be repeated); with "
                    "--role, whose it is: a person, of a worker its job, of a node its host "
                    "[the user; any job, any host]");
  certs->add_option("--days", arguments->days, "how long they are valid")
      ->check(CLI::Range(1, 36500))
      ->capture_default_str();
  return certs;
}

CLI::App* AddEndedCommand(CLI::App& app, ExitArguments* arguments) {
  CLI::App* ended = app.add_subcommand(
      "ended",
      "For launchers: tell how the process of a worker has ended, so that the errors of the others "
      "and the events say it");
  ended->add_option("JOB", arguments->job, "whose worker it was")->required();
  ended->add_option("--launch", arguments->launch, "its COORDD_LAUNCH_ID")->required();
  ended->add_option("--status", arguments->status, "it exited with this status")
      ->check(CLI::Range(0, 255));
  ended->add_option("--signal", arguments->signal, "the number of the signal that killed it")
      ->check(CLI::Range(1, 64));
  ended->add_flag("--unseen", arguments->unseen, "nobody has seen how: its host is gone, say");
  ended->add_option("--reason", arguments->reason, "why its launcher had ended it, one phrase");
  ended->add_option("--line", arguments->last_words,
                    "what it wrote to stderr last (may be repeated, oldest first)");
  ended->add_option("--host", arguments->hostname, "of a process that no worker was in: where");
  ended->add_option("--pid", arguments->pid, "its process id")->check(CLI::Range(0, 1 << 30));
  ended->add_option("--rank", arguments->rank, "its rank, as the launcher counts")
      ->check(CLI::Range(-1, 1 << 30));
  return ended;
}

}  // namespace coordd
