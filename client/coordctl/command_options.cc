#include "client/coordctl/command_options.h"

#include "common/base/usage_failure.h"

namespace coordd {

CLI::App* AddCertsCommand(CLI::App& app, CertsArguments* arguments) {
  CLI::App* certs = app.add_subcommand(
      "certs",
      "Make a small certificate authority with certificates for coordd, for workers and for "
      "operators; or, with --role, one more certificate of the authority in DIR, which has to have "
      "its ca.key");
  certs->add_option("DIR", arguments->directory, "where to; nothing is overwritten without --renew")
      ->required();
  certs->add_option("--role", arguments->role,
                    "server (coordd itself), or what coordd lets its bearer do: operator "
                    "(everything), launcher (its own jobs), worker (be one of a job), node (a "
                    "relay), viewer (look)");
  certs->add_flag("--renew", arguments->renew,
                  "with --role: replace the certificate and its key that are in DIR");
  certs->add_option("--name", arguments->names,
                    "a host name or address of coordd, besides localhost (may be repeated) [of one "
                    "that is renewed, those that it had]; with a client's --role, whose it is: a "
                    "person, of a worker its job, of a node its host [the user; any job, any "
                    "host]");
  certs
      ->add_option("--days", arguments->days,
                   "how long they are valid [365; of one that is renewed, as long as it was]")
      ->check(NumberFrom(1, 36500, "days"));
  certs
      ->add_option("--authority-days", arguments->authority_days,
                   "without --role: how long the authority is, at least as long as they are")
      ->check(NumberFrom(1, 36500, "days"))
      ->capture_default_str();
  return certs;
}

CLI::App* AddEndedCommand(CLI::App& app, ExitArguments* arguments) {
  CLI::App* ended = app.add_subcommand(
      "ended",
      "For launchers: tell how the process of a worker has ended, so that the errors of the others "
      "and the events say it");
  ended->add_option("JOB,--job", arguments->job, "whose worker it was")->required();
  ended->add_option("--launch", arguments->launch, "its COORDD_LAUNCH_ID")->required();
  ended->add_option("--status", arguments->status, "it exited with this status")
      ->check(NumberFrom(0, 255));
  ended->add_option("--signal", arguments->signal, "the number of the signal that killed it")
      ->check(NumberFrom(1, 64));
  ended->add_flag("--unseen", arguments->unseen, "nobody has seen how: its host is gone, say");
  ended->add_option("--reason", arguments->reason, "why its launcher had ended it, one phrase");
  ended->add_option("--line", arguments->last_words,
                    "what it wrote to stderr last (may be repeated, oldest first)");
  ended->add_option("--host", arguments->hostname, "where it ran, if no worker has joined from it");
  ended->add_option("--pid", arguments->pid, "its process id")->check(NumberFrom(0, 1 << 30));
  ended->add_option("--rank", arguments->rank, "its rank, as the launcher counts")
      ->check(NumberFrom(-1, 1 << 30));
  return ended;
}

}  // namespace coordd
